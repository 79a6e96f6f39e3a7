package scheduler

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
)

// NewLauncher makes an agent launcher that starts what scheduler.conf has, as it is when
// it is asked. own is the user of the scheduler.
func NewLauncher(settings *config.Config, own string) *agents.Launcher {
	c := &launcherConf{settings: settings}
	return &agents.Launcher{
		Check: func() error {
			_, err := c.read()
			return err
		},
		Launch: c.launch, Own: own, ZConfig: settings.File,
		Dir: filepath.Join(settings.PostOffice(), postoffice.Transport),
	}
}

// launcherConf is the scheduler.conf of an agent launcher.
type launcherConf struct {
	settings *config.Config

	mu   sync.Mutex
	conf *conf.File
	file os.FileInfo // when it was read; nil: there is none
	main os.FileInfo // zmailer.conf, for ${NAME} in commands
}

func (c *launcherConf) launch(channel, host string) (agents.Launch, error) {
	f, err := c.read()
	if f == nil {
		return agents.Launch{}, err
	}
	s := f.Match(channel, host)
	if s == nil {
		return agents.Launch{}, fmt.Errorf("no clause of scheduler.conf serves %s/%s", channel, host)
	}
	return agents.LaunchOf(s, channel, host), nil
}

// read reads scheduler.conf if it has changed. With an error it returns the version before,
// if there is one.
func (c *launcherConf) read() (*conf.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := c.settings.Path("scheduler.conf")
	info, err := os.Stat(path)
	if err != nil {
		info = nil // the built-in one holds
	}
	main, err := os.Stat(c.settings.File)
	if err != nil {
		main = nil // the settings of the start hold
	}
	if c.conf != nil && sameFile(c.file, info) && sameFile(c.main, main) {
		return c.conf, nil
	}
	if err := onlyRoots(path, info); err != nil {
		return c.conf, err
	}
	settings := c.settings
	if c.conf != nil && main != nil {
		if settings, err = config.LoadFor(c.settings.File, c.settings.PostOffice()); err != nil {
			return c.conf, err
		}
	}
	f, err := conf.Load(settings, true)
	if err != nil {
		return c.conf, err
	}
	c.conf, c.file, c.main = f, info, main
	return f, nil
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// onlyRoots refuses a file that others than root can write: it specifies which users
// agents run as.
func onlyRoots(path string, info os.FileInfo) error {
	if info == nil {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && (st.Uid != 0 || st.Mode&0o022 != 0) {
		return &config.Error{File: path, Reason: "it specifies the users that agents run as, and others than root can write it: chown root, chmod go-w"}
	}
	return nil
}
