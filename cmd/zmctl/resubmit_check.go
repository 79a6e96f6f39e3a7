package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
)

// verdict is what the router says of a message, a line of router --route --json.
type verdict struct {
	Verdict    string `json:"verdict"`
	Reason     string `json:"reason"`
	Why        string `json:"why"`
	Recipients []struct {
		Address string `json:"address"`
		Verdict string `json:"verdict"`
		Reason  string `json:"reason"`
		Targets []struct {
			Channel string `json:"channel"`
			Host    string `json:"host"`
			User    string `json:"user"`
		} `json:"targets"`
		More int `json:"more"`
	} `json:"recipients"`
}

// wouldRoute is the verdict on a message that would be handed to the scheduler.
const wouldRoute = "routed"

// targetsShown is how many targets of a recipient are told.
const targetsShown = 5

// checkAside asks the router what would become of each message now, and moves nothing.
func checkAside(c *cli.Context, from *aside) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	list, err := from.find(c.Context, newSpool(po, time.Now()))
	if err == nil {
		err = from.missing("resubmit")
	}
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(c.App.Writer, "nothing in "+from.dir+"/ matches")
		return nil
	}
	router, err := askRouter(c, settings)
	if err != nil {
		return err
	}
	out := newStream(c.App.Writer)
	bar := newProgress(c, "check", len(list))
	sum := map[string]int{}
	for _, f := range list {
		var v verdict
		var line []byte
		if line, err = router.about(from.dir+"/"+f.name, &v); err != nil {
			break
		}
		sum[v.Verdict]++
		bar.step()
		switch {
		case c.Bool("json"):
			_, err = out.Write(line)
		case !c.Bool("quiet") && !bar.alone(c.App.Writer):
			err = printVerdict(out, &v, f)
		}
		if err = errors.Join(err, out.tick()); err != nil {
			break
		}
	}
	bar.end()
	err = errors.Join(err, router.end(), c.Context.Err())
	if err == nil && !c.Bool("json") {
		printVerdicts(out, sum)
	}
	if err = quiet(errors.Join(err, out.flush())); err == nil && sum[wouldRoute] < len(list) {
		return cli.Exit("", 1)
	}
	return err
}

func printVerdicts(w io.Writer, sum map[string]int) {
	var parts []string
	n := 0
	for _, word := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, fmt.Sprintf("%d %s", sum[word], clean(word)))
		n += sum[word]
	}
	// Trouble of the writer is met when it is flushed.
	fmt.Fprintf(w, "of %s now: %s; nothing was moved\n", count(n, "message"), strings.Join(parts, ", "))
}

func printVerdict(w io.Writer, v *verdict, f chosenFile) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s", f.name, f.id, clean(v.Verdict))
	if v.Why != "" {
		b.WriteString(" (" + clean(v.Why) + ")")
	}
	if v.Reason != "" {
		b.WriteString(": " + cut(clean(oneLine(v.Reason)), 500))
	}
	b.WriteByte('\n')
	for i := range v.Recipients {
		r := &v.Recipients[i]
		fmt.Fprintf(&b, "    <%s>", clean(r.Address))
		if r.Verdict != "" && r.Verdict != v.Verdict {
			b.WriteString("  " + clean(r.Verdict))
		}
		if r.Reason != "" && r.Reason != v.Reason {
			b.WriteString(": " + cut(clean(oneLine(r.Reason)), 300))
		}
		for k, t := range r.Targets[:min(len(r.Targets), targetsShown)] {
			sep := "  to "
			if k > 0 {
				sep = ", "
			}
			b.WriteString(sep + clean(t.Channel+"/"+t.Host+" "+t.User))
		}
		if n := max(len(r.Targets)-targetsShown, 0) + r.More; n > 0 {
			fmt.Fprintf(&b, " and %d more", n)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// asking is a router that says what it would do. One does for any number of messages.
type asking struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func askRouter(c *cli.Context, settings *config.Config) (*asking, error) {
	path, err := program("router")
	if err != nil {
		return nil, cli.Exit(err, config.ExitOSErr)
	}
	a := &asking{cmd: exec.CommandContext(c.Context, path, "--route", "--json", "--stdin")}
	a.cmd.Env, a.cmd.Stderr = environment(settings), c.App.ErrWriter
	out, err := a.cmd.StdoutPipe()
	if err == nil {
		a.in, err = a.cmd.StdinPipe()
	}
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	a.out = bufio.NewReaderSize(out, 64<<10)
	return a, nil
}

// about reads the router's line about a message, a path below the postoffice.
func (a *asking) about(path string, v *verdict) ([]byte, error) {
	_, err := io.WriteString(a.in, path+"\n")
	var line []byte
	if err == nil {
		line, err = a.out.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		return nil, fmt.Errorf("ask router --route about %s: %w", path, err)
	}
	return line, nil
}

// end tells how the router ended. What is wrong with the configuration it has said itself.
func (a *asking) end() error {
	cerr := a.in.Close()
	err := a.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return cli.Exit("", max(exit.ExitCode(), 1))
	}
	return errors.Join(cerr, err)
}
