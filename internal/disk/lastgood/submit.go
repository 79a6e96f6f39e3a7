package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
)

// SubmitFile is a file of the postoffice that every user may read: the settings that submit needs,
// as the daemons go by them. The scheduler, of which there is one, writes it; submit reads it when
// zmailer.conf cannot be used. The copies in Dir are of no use to submit, which runs as any user.
const SubmitFile = ".submit"

const (
	submitNext = SubmitFile + ".new"
	// submitHead begins the first line, and the path of zmailer.conf follows; submitEnd is the last
	// line: a file without them is damaged.
	submitHead = "# zmailer-submit 1 "
	submitEnd  = "# end\n"
	// mostSubmit bounds the file.
	mostSubmit = 64 << 10
)

// SubmitSettings are the settings that submit reads. None is a secret.
func SubmitSettings() []string {
	return []string{"HOSTNAME", "MAXSIZE", "SYNC", "ROUTERDIRS", "CLUSTER", "NODE", "LEASEDIR"}
}

// Publish writes SubmitFile, now and whenever other settings are accepted. The process that calls it
// is the only one of its kind in the postoffice.
func (f *Follower) Publish() {
	if f.store == nil {
		return
	}
	f.publishes = true
	f.publish()
}

func (f *Follower) publish() {
	text := append([]byte(submitHead+f.current.File+"\n"), f.started.Lines("POSTOFFICE")...)
	text = append(append(text, f.current.Lines(SubmitSettings()...)...), submitEnd...)
	s := f.store
	if old, _, err := readFile(s.fs, SubmitFile, mostSubmit); err == nil && bytes.Equal(old, text) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble(replacePublic(s, text))
}

// replacePublic replaces SubmitFile.
func replacePublic(s *Store, text []byte) error {
	w, err := s.fs.Open(submitNext, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	// Whatever the umask: users read it.
	if err = w.Chmod(0o644); err == nil {
		_, err = w.Write(text)
	}
	// Crash: a file that no program reads; the next start writes it again.
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		return errors.Join(err, s.fs.Remove(submitNext))
	}
	// Crash: the old settings or the new ones, each whole.
	if err = s.fs.Rename(submitNext, SubmitFile); err != nil {
		return err
	}
	// Crash: before this the old settings may be there; submit needs them only for a zmailer.conf that
	// turns bad later.
	return s.fs.SyncDir(".")
}

// ForSubmit returns the settings for submit: those of zmailer.conf, or, if the file cannot be used
// now, those that the daemons go by. Then held is why the file cannot be used.
func ForSubmit(c *cli.Context) (settings *config.Config, held, err error) {
	now, err := config.FromCLI(c)
	if err == nil {
		return now, nil, nil
	}
	dir, file, perr := place(c, now)
	if perr != nil {
		return nil, nil, err
	}
	text, rerr := readPublic(dir, file)
	if rerr != nil {
		return nil, nil, err
	}
	used, uerr := config.FromCopy(c, text)
	if uerr != nil || used.PostOffice() != dir {
		return nil, nil, err
	}
	return used, err, nil
}

// readPublic reads the SubmitFile of a postoffice for a zmailer.conf.
func readPublic(dir, file string) ([]byte, error) {
	// The daemons' user may have put anything there.
	f, err := os.OpenFile(filepath.Join(dir, SubmitFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, mostSubmit))
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(text, []byte(submitHead+file+"\n")) || !bytes.HasSuffix(text, []byte("\n"+submitEnd)) {
		return nil, fmt.Errorf("%s is damaged, or about another zmailer.conf", SubmitFile)
	}
	return text, nil
}
