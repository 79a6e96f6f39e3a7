package main

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/ui/web"
)

// site is what is served, and what of it a reload changes.
type site struct {
	c      *cli.Context
	log    *slog.Logger
	dir    string // the postoffice
	source *web.Postoffice
	keeper config.Keeper // of certificates; nil: none
	follow *lastgood.Follower

	samples  *web.Samples
	entrance *entrance
	conf     webconf.Settings
	page     atomic.Pointer[web.Page]
}

// ServeHTTP implements http.Handler by the page of now.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.page.Load().ServeHTTP(w, r) }

// keys has copies of the certificate kept, and its key opened by another process, if this one has a
// right for that which it gives up then: systemd grants it to the unit. What root starts reads as root.
func (s *site) keys(settings *config.Config) error {
	store := lastgood.Use(settings, "zmweb", s.log)
	if store != nil {
		s.keeper = store
	}
	s.follow = lastgood.Follow(settings, "zmweb", store, s.log, func() (*config.Config, error) { return config.FromCLI(s.c) })
	if os.Geteuid() == 0 {
		return nil
	}
	opener, err := keys.Start(settings, "zmweb")
	if err != nil || opener == nil {
		return err
	}
	store.OpenBy(opener)
	if store == nil {
		s.keeper = lastgood.NoCopies{Opener: opener}
	}
	return confine.GiveUp()
}

// use serves by settings from now on. With an error nothing has changed.
func (s *site) use(settings *config.Config) (page *web.Config, err error) {
	settings.SetKeeper(s.keeper)
	w, err := webconf.From(settings, given(s.c))
	if err != nil {
		return nil, err
	}
	certs, err := w.Certificates(settings, s.log)
	if err != nil {
		return nil, err
	}
	page = &web.Config{Source: s.source, Samples: s.samples, Secure: certs != nil, Hostname: w.Hostname, Now: time.Now, Log: s.log}
	if w.Write {
		page.Orders = s.source
	}
	if err := access(w, settings, page, s.dir); err != nil {
		return nil, err
	}
	ln, err := s.listen(w, settings)
	if err != nil {
		return nil, err
	}
	page.Hosts, page.Cookie = names(w, ln.Addr()), portOf(ln.Addr())
	s.serve(w, *page, ln, certs)
	return page, nil
}

// listen returns the listener of an address: that which is in use if it is the same.
func (s *site) listen(w webconf.Settings, settings *config.Config) (net.Listener, error) {
	if s.entrance == nil {
		return open(s.c.Context, w, settings)
	}
	before := s.entrance.listener()
	if w.Listen == s.conf.Listen {
		return before, nil
	}
	return open(s.c.Context, w, settings, before)
}

// serve replaces the page and where it is served.
func (s *site) serve(w webconf.Settings, page web.Config, ln net.Listener, certs *listen.Certificates) {
	if before := s.page.Load(); before != nil {
		s.page.Store(before.With(page))
	} else {
		s.page.Store(web.New(page))
	}
	s.conf = w
	if s.entrance == nil {
		s.entrance = newEntrance(ln, handshakes(certs))
		return
	}
	s.entrance.use(ln, handshakes(certs))
}

// reload reads zmailer.conf again. What cannot be used leaves everything as it was. It reports
// whether clients have to connect again.
func (s *site) reload() bool {
	settings, err := s.follow.Read()
	if err == nil {
		_, err = s.use(settings)
		err = settings.Locate(err)
	}
	if err != nil {
		s.follow.Refuse(err)
		return false
	}
	s.log.Info("conf-read", s.follow.Accept()...)
	s.follow.Settle()
	return true
}

// names returns those that requests may be made to.
func names(w webconf.Settings, at net.Addr) []string {
	names := slices.Concat(w.Hosts, []string{"localhost", "127.0.0.1", "::1", w.Hostname})
	if host, _, err := net.SplitHostPort(w.Listen); err == nil && host != "" {
		names = append(names, host)
	}
	if at, ok := at.(*net.TCPAddr); ok && !at.IP.IsUnspecified() {
		names = append(names, at.IP.String())
	}
	return names
}

func portOf(a net.Addr) string {
	if at, ok := a.(*net.TCPAddr); ok {
		return strconv.Itoa(at.Port)
	}
	return ""
}
