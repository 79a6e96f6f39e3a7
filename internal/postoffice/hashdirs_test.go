package postoffice

import (
	"errors"
	"io"
	"testing"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// Dur3: on a disk that promises no more than POSIX, with sync=strict, what HandOver has
// returned a name of is there after a power loss, and so are the hash directories above it,
// also if they were made by a process that was killed before it could sync them.
func TestDur3HashDirectoriesAreDurable(t *testing.T) {
	handOver := func(p *PostOffice) (string, error) {
		d, err := p.Submissions.NewDraft("test")
		if err != nil {
			return "", err
		}
		if _, err := io.WriteString(d, "to a\n\nx\n"); err != nil {
			return "", err
		}
		a, err := d.Commit()
		if err != nil {
			return "", err
		}
		o, err := p.Owners.Take("test")
		if err != nil {
			return "", err
		}
		c, err := p.Router.Claim(o, a.Name)
		if err != nil {
			return "", err
		}
		w, err := c.CreateWork()
		if err != nil {
			return "", err
		}
		if err := errors.Join(w.Sync(), w.Close()); err != nil {
			return "", err
		}
		return c.HandOver()
	}
	for name, c := range map[string]struct {
		levels int
		there  bool // of a process that was killed
	}{
		"one level":             {1, false},
		"two levels":            {2, false},
		"one level, left there": {1, true},
	} {
		t.Run(name, func(t *testing.T) {
			disk := cutfs.New()
			disk.SetModel(cutfs.POSIX)
			assert.Must(t, Init(disk))
			for letter := 'A'; c.there && letter <= 'Z'; letter++ {
				for _, dir := range []string{Queue, Transport} {
					assert.Must(t, disk.Mkdir(dir+"/"+string(letter), 0o755))
				}
			}
			p := assert.Get(Open(Config{FS: disk, Strict: true, HashLevels: c.levels}))(t)
			rel := assert.Get(handOver(p))(t)
			for _, loss := range disk.Losses() {
				after := disk.Restart(loss)
				for _, dir := range []string{Queue, Transport} {
					if _, err := after.Stat(dir + "/" + rel); err != nil {
						t.Errorf("%v: %v\n%s", loss, err, disk.Log())
					}
				}
			}
		})
	}
}
