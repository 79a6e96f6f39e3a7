package service

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/supervise"
)

// systemd is the service manager of the machine.
type systemd struct {
	ctl   string                       // systemctl
	units map[string]map[string]string // those that are installed, with their properties
}

func unitOf(daemon string) string { return "zmailer-" + daemon + ".service" }

// Agents is the service that starts agents for the scheduler. It starts and stops with it.
const Agents = "agents"

// further are units that start and stop with the services.
func further() []string { return []string{"zmailer.target", "zmailer-smtpserver.socket"} }

// findSystemd finds units that serve this postoffice; nil if there are none, or if systemd
// does not run this machine. root is the root directory, "/".
func findSystemd(ctx context.Context, root string, settings *config.Config) *systemd {
	// sd_booted(3)
	if _, err := os.Stat(filepath.Join(root, "run/systemd/system")); err != nil {
		return nil
	}
	ctl, err := exec.LookPath("systemctl")
	if err != nil {
		return nil
	}
	d := &systemd{ctl: ctl}
	if err := d.read(ctx); err != nil {
		return nil
	}
	unit, ok := d.units[unitOf("scheduler")]
	if !ok || !serves(unit, settings) {
		return nil
	}
	return d
}

// read asks for the properties of the units.
func (d *systemd) read(ctx context.Context) error {
	args := []string{"show", "--no-pager", "--property=Id,LoadState,ActiveState,SubState,MainPID,NRestarts,ActiveEnterTimestampMonotonic,Result,UnitFileState,Environment,ExecStart"}
	for _, name := range append(Daemons(), Agents) {
		args = append(args, unitOf(name))
	}
	out, err := exec.CommandContext(ctx, d.ctl, append(args, further()...)...).Output()
	if err != nil {
		return fmt.Errorf("ask systemd: %w", err)
	}
	d.units = map[string]map[string]string{}
	unit := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(append(out, "\n\n"...)))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if ok {
			unit[name] = value
			continue
		}
		if unit["Id"] != "" && unit["LoadState"] == "loaded" {
			d.units[unit["Id"]] = unit
		}
		unit = map[string]string{}
	}
	return lines.Err()
}

// serves reports whether a unit's configuration names this postoffice.
func serves(unit map[string]string, settings *config.Config) bool {
	file := ""
	words := strings.Fields(unit["Environment"] + " " + unit["ExecStart"])
	for i, w := range words {
		switch {
		case strings.HasPrefix(w, "ZCONFIG="):
			file = strings.TrimPrefix(w, "ZCONFIG=")
		case strings.HasPrefix(w, "--config="):
			file = strings.TrimPrefix(w, "--config=")
		case w == "--config" && i+1 < len(words):
			file = words[i+1]
		}
	}
	theirs, err := config.Load(file)
	return err == nil && theirs.PostOffice() == settings.PostOffice()
}

// states returns what systemd reports about the daemons.
func (d *systemd) states(ctx context.Context) ([]supervise.State, error) {
	if err := d.read(ctx); err != nil {
		return nil, err
	}
	var all []supervise.State
	for _, name := range append(Daemons(), Agents) {
		unit := d.units[unitOf(name)]
		if unit == nil && name == Agents {
			continue // the scheduler starts agents itself
		}
		st := supervise.State{Daemon: name, Runs: unit["MainPID"] != "" && unit["MainPID"] != "0", Ready: unit["ActiveState"] == "active"}
		st.Pid, _ = strconv.Atoi(unit["MainPID"]) // 0: it does not run
		restarts, _ := strconv.Atoi(unit["NRestarts"])
		switch {
		case st.Runs:
			st.Starts, st.Replaced = restarts+1, supervise.Replaced(st.Pid)
			st.Since = sinceBoot(unit["ActiveEnterTimestampMonotonic"])
			if restarts > 0 {
				st.Last = "restarted by systemd"
			}
		case unit == nil:
			st.Last = "it has no unit"
		case unit["ActiveState"] == "failed":
			st.Last = unit["Result"] + "; see journalctl -u " + unitOf(name)
		default:
			st.Stopped = true
		}
		all = append(all, st)
	}
	return all, nil
}

// sinceBoot converts microseconds since the machine was booted.
func sinceBoot(text string) *time.Time {
	us, err := strconv.ParseInt(text, 10, 64)
	up, uerr := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(up), " ")
	seconds, ferr := strconv.ParseFloat(first, 64)
	if us == 0 || errors.Join(err, uerr, ferr) != nil {
		return nil
	}
	t := time.Now().Add(-time.Duration(seconds * float64(time.Second))).Add(time.Duration(us) * time.Microsecond).Truncate(time.Second)
	return &t
}

// goesWith reports whether a target or socket is started, stopped or restarted, too.
func (d *systemd) goesWith(unit, verb string, names []string) bool {
	properties, there := d.units[unit]
	switch {
	case !there:
		return false
	case strings.HasSuffix(unit, ".target"):
		return len(names) == 0 && verb != "restart"
	case len(names) > 0 && !slices.Contains(names, "smtpserver"):
		return false
	case verb == "stop":
		// A listening socket would start its daemon again.
		return properties["ActiveState"] == "active"
	case verb == "restart" && (properties["ActiveState"] == "active" || d.units[unitOf("smtpserver")]["ActiveState"] == "active"):
		// It continues to listen, so that no client is refused; and none is opened for a
		// daemon that has its own sockets.
		return false
	}
	return properties["UnitFileState"] == "enabled"
}

// act has systemd start, stop or restart daemons; all of them, and the units that go with
// them, if none is named.
func (d *systemd) act(ctx context.Context, verb string, names []string, out io.Writer) error {
	var units []string
	for _, name := range Daemons() {
		if len(names) == 0 || slices.Contains(names, name) {
			units = append(units, unitOf(name))
		}
	}
	if agents := unitOf(Agents); verb == "restart" && slices.Contains(units, unitOf("scheduler")) && d.units[agents]["ActiveState"] == "active" {
		units = append(units, agents) // the same program
	}
	for _, unit := range further() {
		if d.goesWith(unit, verb, names) {
			units = append([]string{unit}, units...)
		}
	}
	if verb == "start" || verb == "restart" {
		// A unit that failed too often is not started without this; it may fail if there is none.
		_ = exec.CommandContext(ctx, d.ctl, append([]string{"reset-failed"}, units...)...).Run()
	}
	cmd := exec.CommandContext(ctx, d.ctl, append([]string{verb}, units...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("systemctl %s %s: %w", verb, strings.Join(units, " "), err)
	}
	return nil
}
