package smtpserver

import (
	"cmp"
	"crypto/sha256"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/remember"
	"zmailer/internal/stage/smtpserver/session"
)

// Pregreet defines the test for clients that speak before they are greeted
// (docs/pregreet.md).
type Pregreet struct {
	Wait   time.Duration // how long a client that is not known waits for the greeting; 0: no test
	Action string        // of a client that does not wait: enforce, drop or ignore
	Keep   time.Duration // how long one that has waited is known
}

// Actions of Pregreet.
const (
	pregreetEnforce = "enforce"
	pregreetDrop    = "drop"
	pregreetIgnore  = "ignore"
)

// maxGreeted bounds the clients that are known.
const maxGreeted = 100000

// openPregreet opens the table of clients that have waited.
func (h *shared) openPregreet(c *Config) {
	keep := cmp.Or(c.Pregreet.Keep, 24*time.Hour)
	switch {
	case c.Pregreet.Wait <= 0:
	case h.greeted != nil:
		h.greeted.Limit(maxGreeted, keep)
	default:
		h.greeted = remember.Open(remember.Config{FS: h.clientsFS(c), Name: "greeted", Most: maxGreeted, Keep: keep, Keeper: c.Keeper, Log: c.Log})
	}
}

// openGreylist opens the greylist, or has it go on with other settings.
func (h *shared) openGreylist(c *Config) {
	g := &c.Access.Greylist
	switch {
	case !g.On:
	case h.grey != nil:
		h.grey = h.grey.With(g.Config)
	default:
		g.Config.FS, g.Config.Log, g.Config.Keeper = h.clientsFS(c), c.Log, c.Keeper
		h.grey = greylist.Open(g.Config)
	}
}

// closeClients writes what the tables have learned.
func (h *shared) closeClients() {
	if h.greeted != nil {
		h.greeted.Close()
	}
	if h.grey != nil {
		h.grey.Close()
	}
}

// mayTest reports whether connections of a port are tested before the greeting.
func (s *server) mayTest(role session.Role) bool {
	return s.Pregreet.Wait > 0 && s.waited != nil && role == session.RoleMX
}

// waits tests whether a client waits for the greeting, and reports whether it may be served.
func (s *server) waits(c *connection) bool {
	client := c.Client()
	addr := client.Addr.Addr()
	if !s.mayTest(client.Role) || !client.Addr.IsValid() || addr.IsUnspecified() || s.rules.IsRelayNet(addr) || s.limits.Exempt(addr) {
		return true
	}
	var key remember.Key
	sum := sha256.Sum256([]byte(limits.Network(addr).String()))
	copy(key[:], sum[:])
	now := time.Now()
	if e, known := s.waited.Get(key); known {
		if now.Unix()-e.Last > int64(time.Hour/time.Second) {
			e.Last = now.Unix()
			s.waited.Put(key, e)
		}
		return true
	}
	early, said := c.AwaitGreeting(s.Pregreet.Wait)
	if !early {
		if c.Lives() {
			s.waited.Put(key, remember.Entry{First: now.Unix(), Last: now.Unix(), Count: 1})
		}
		return true
	}
	s.Log.Info("pregreet", "client", client.String(), "after", time.Since(now).Round(time.Millisecond), "text", said, "action", s.Pregreet.Action)
	switch s.Pregreet.Action {
	case pregreetIgnore:
	case pregreetDrop:
		c.Refuse(session.NewReply(521, "5.5.1", "Protocol error"))
		return false
	default:
		c.SetEarly()
	}
	return true
}

// early refuses recipients of a client that has spoken before it was greeted.
func (h *handler) early() (v access.Verdict) {
	if h.client.Early && !h.trusted() {
		v = access.Verdict{Action: access.Reject, Code: 550, Status: status.Code{Class: 5, Subject: 5, Detail: 1}, Text: "Protocol error", By: "pregreet"}
	}
	return v
}

// clientsFS returns where the tables in clients/ are; nil: they are kept in memory.
func (h *shared) clientsFS(c *Config) durable.FS {
	disk, err := clientsFS(*c, h.po)
	if err != nil {
		// Known clients are tested again; mail goes on.
		c.Log.Error("clients-trouble", "file", postoffice.Clients, "reason", err)
		return nil
	}
	return disk
}
