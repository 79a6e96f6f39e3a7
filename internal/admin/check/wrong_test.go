package check

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/setup"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/wrongconf"
)

// rig is a directory with a configuration and its postoffice.
type rig struct {
	dir, po string
	text    wrongconf.Texts
}

func (r *rig) write(t *testing.T, name, text string) { r.text.Write(t, r.dir, name, text) }

func (r *rig) load(t *testing.T) (*config.Config, error) {
	t.Helper()
	c, err := config.Load(filepath.Join(r.dir, "zmailer.conf"))
	if c == nil {
		t.Fatal(err)
	}
	return c, err
}

// start loads all files as the daemons do, with their copies.
func (r *rig) start(t *testing.T) (errs error) {
	t.Helper()
	c, err := r.load(t)
	if err != nil {
		return err
	}
	found := []error{}
	for _, l := range Loaders() {
		store := assert.Get(lastgood.Open(r.po, l.Program, slog.New(slog.DiscardHandler)))(t)
		c.SetKeeper(store)
		bad, _ := config.Sort(l.Start(c))
		found = append(found, config.Errors(bad)...)
		c.SetKeeper(nil)
	}
	if len(found) > 0 {
		return found[0]
	}
	return nil
}

func (r *rig) alarms(t *testing.T) (subjects []string) {
	t.Helper()
	po := assert.Get(postoffice.OpenDir(r.po, 0, false))(t)
	for _, a := range po.ConfigAlarms(time.Now()) {
		subjects = append(subjects, a.Subject)
	}
	return subjects
}

// Op1, Op4: each of these configurations is named with its line by check-config; a start refuses
// it, or goes on with the copy of what could be used before, with an alarm.
func TestOp1EveryWrongConfigurationIsNamedAndStrandsNobody(t *testing.T) {
	texts, cases := wrongconf.MakeTexts(t), wrongconf.Cases()
	if len(cases) < 120 {
		t.Errorf("%d cases, want 120", len(cases))
	}
	for _, w := range cases {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			r := &rig{dir: t.TempDir(), text: texts}
			r.po = filepath.Join(r.dir, "po")
			assert.Must(t, setup.Make(r.po))
			r.write(t, "scheduler.conf", "{smtp,local}/*\n\tcommand=\"/bin/true\"\n")
			if strings.Contains(w.Conf, "mx.pem") {
				r.write(t, "mx.pem", "CERT")
				r.write(t, "mx.key", "KEY")
			}
			conf := fmt.Sprintf("POSTOFFICE=%s\nHOSTNAME=mx.example.org\n", r.po)
			if w.File != "" {
				r.write(t, "zmailer.conf", conf+w.Conf+"\n")
				r.write(t, w.File, w.Good)
				if err := r.start(t); err != nil {
					t.Fatalf("before: %v", err)
				}
				if w.Name == "a certificate that ends soon" {
					r.write(t, "mx.key", texts["ENDSKEY"])
				}
				r.write(t, w.File, w.Bad)
			} else {
				r.write(t, "zmailer.conf", conf+w.Conf+"\n")
			}
			file, line := filepath.Join(r.dir, "zmailer.conf"), 3
			if w.Line > 0 || w.Name == "a program without functions" {
				file, line = filepath.Join(r.dir, w.File), w.Line
			}
			c, parse := r.load(t)
			found := Config(c, parse, Everything)
			named := slices.ContainsFunc(found.Lines, func(l ConfigLine) bool {
				return l.File == file && l.Line == line && l.Cause != "" && l.Wrong == (w.Want != wrongconf.Warned) && l.Warning == (w.Want == wrongconf.Warned)
			})
			if !named || found.Usable != (w.Want == wrongconf.Warned) {
				t.Errorf("check-config: usable %v, want an error of %s:%d in %+v", found.Usable, file, line, found.Lines)
			}
			if w.Name == "AUTH=pam:no-such-service-here" {
				return // a start needs the program lookup, which is not beside a test
			}
			started := Config(c, parse, Start)
			if started.Usable != (w.Want != wrongconf.Refused) {
				t.Errorf("check-config --start: usable %v, want it %s: %+v", started.Usable, w.Want, started.Lines)
			}
			if err := r.start(t); (err != nil) != (w.Want == wrongconf.Refused) {
				t.Errorf("start: %v, want it %s", err, w.Want)
			}
			if w.Want != wrongconf.Held {
				return
			}
			if list := r.alarms(t); len(list) == 0 {
				t.Error("no alarm")
			}
			r.write(t, w.File, w.Good)
			if err := r.start(t); err != nil || len(r.alarms(t)) != 0 {
				t.Errorf("mended: %v, alarms %v", err, r.alarms(t))
			}
		})
	}
}
