package attack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recipients are accounts of the system whose mailboxes are not used otherwise in these tests.
func (w *world) recipients() (list []account) {
	w.Helper()
	for _, name := range []string{"bin", "sys", "man", "lp", "mail", "proxy", "www-data", "backup", "list", "irc", "sync", "nobody", "_apt", "gnats", "ftp"} {
		if a, ok := lookup(name); ok {
			list = append(list, a)
		}
	}
	if len(list) < 5 {
		w.Skip("this system has too few accounts")
	}
	return list
}

// Sec6: in a system mail directory of mode 1777 no mail goes into what another user has
// made under the name of a mailbox, as an mbox file or a Maildir. It waits, and is delivered
// once when that is gone; the other mailboxes get their mail at once.
func TestSec6PlantedMailboxesGetNoMail(t *testing.T) {
	for name, box := range map[string]string{"mbox": "/%u", "Maildir": "/%u/"} {
		for _, mode := range []string{asRoot, asDaemon} {
			t.Run(name+" "+mode, func(t *testing.T) {
				need(t)
				t.Parallel()
				w := prepare(t, mode, func(w *world) { w.s.Settings["MAILBOX"] = filepath.Join(w.s.Dir, "mail") + box })
				w.maildirs = name == "Maildir"
				w.start()
				w.send()
				w.delivered()
				who, all := w.recipients(), kinds()
				for len(all) > 0 {
					n := min(len(who), len(all))
					w.plantMailboxes(who[:n], all[:n])
					all = all[n:]
					if w.Failed() {
						return
					}
				}
			})
		}
	}
}

// plantMailboxes plants each kind as a user's mailbox, sends mail there, and removes what
// was planted.
func (w *world) plantMailboxes(who []account, kinds []kind) {
	w.Helper()
	w.s.Forget()
	before := len(w.sent)
	for i, k := range kinds {
		path := filepath.Join(w.s.Dir, "mail", who[i].name)
		w.must(os.RemoveAll(path)) // of the round before
		w.must(k.plant(w, path))
		w.smtp(who[i].name + "@mta.example")
	}
	mine := slices.Clone(w.sent[before:])
	w.sent = w.sent[:before]
	w.send()
	w.delivered() // the others' mail
	for i, k := range kinds {
		e := w.event("deferred", "rcpt", mine[i].to)
		if !strings.HasPrefix(e.Get("status"), "4.") {
			w.Errorf("a %s as a mailbox: status %s", k.what, e.Get("status"))
		}
	}
	w.unharmed()
	for i := range kinds {
		w.must(os.RemoveAll(filepath.Join(w.s.Dir, "mail", who[i].name)))
	}
	w.sent = append(w.sent, mine...)
	w.delivered()
	w.unharmed()
	w.sent = w.sent[:len(w.sent)-len(mine)] // their mailboxes go with the next round
}

// Sec6: FILE.lock of another user's keeps no mail out.
func TestSec6PlantedLocksKeepNoMailOut(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := begin(t, mode, nil)
			// What he plants is of now: an hour later each counts for nothing anyway.
			who := w.recipients()
			for i, k := range kinds() {
				a := who[i%len(who)]
				lock := filepath.Join(w.s.Dir, "mail", a.name+".lock")
				w.must(k.plant(w, lock))
				l := w.smtp(a.name + "@mta.example")
				w.await("mail for a mailbox with a "+k.what+" as its lock", func() bool { return w.arrived(l) > 0 })
				w.must(os.RemoveAll(lock))
			}
			if n := w.s.Count("deferred"); n > 0 {
				t.Errorf("%d deliveries waited", n)
			}
			w.check()
		})
	}
}

// Sec6: names in a race with the delivery: the mailbox's name is now a link to a file of
// somebody else's, now a file of the attacker's, now gone.
func TestSec6MailboxNamesInARace(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := begin(t, mode, nil)
			to := w.recipients()[0]
			box, tmp := filepath.Join(w.s.Dir, "mail", to.name), filepath.Join(w.s.Dir, "mail", "zz")
			w.a.race(op{Do: "symlink", Path: box, To: w.keys()}, op{Do: "remove", Path: box})
			w.a.race(op{Do: "link", Path: box, To: w.root()}, op{Do: "remove", Path: box})
			w.a.race(op{Do: "file", Path: tmp, Mode: 0o666}, op{Do: "rename", Path: tmp, To: box}, op{Do: "remove", Path: box})
			w.a.race(op{Do: "link", Path: box, To: w.theirs()}, op{Do: "dir", Path: tmp}, op{Do: "exchange", Path: tmp, To: box}, op{Do: "clear", Path: tmp})
			w.smtp(to.name + "@mta.example")
			l := w.sent[len(w.sent)-1]
			w.sent = w.sent[:len(w.sent)-1]
			for until := time.Now().Add(raceTime); time.Now().Before(until); {
				w.check()
			}
			if turns := w.a.stop(); turns < 100 {
				t.Errorf("the race had %d turns", turns)
			}
			// He may have left a name; and once the file is the user's, none is his.
			if info, err := os.Lstat(box); err == nil && owner(info) != to.uid {
				w.must(os.RemoveAll(box))
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			w.await("mail for "+to.name, func() bool { return w.arrived(l) > 0 })
			w.check()
		})
	}
}

// raceTime is how long a race is run.
const raceTime = 2 * time.Second

func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
