package rules

import (
	"context"
	"path"
	"strings"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
	"zmailer/internal/table/text"
	"zmailer/internal/workspec"
)

// inBase reports whether a mailbox is a file or directory below a directory, and nothing on the way
// leads out of it.
func inBase(s, base string) bool {
	bare := strings.TrimSuffix(s, "/")
	return strings.HasPrefix(bare, base+"/") && path.Clean(bare) == bare && !strings.ContainsAny(s, "\x00\n\r")
}

// Op3: no recipient, and no value that a table has for one, is a mailbox outside of its directory, or
// one of a uid or gid that mailboxes may not have.
func TestNoTextLeadsAMailboxOutOfItsDirectory(t *testing.T) {
	texts := append(hostile.Texts(t), "v/a/ uid=0", "v/a/ gid=0", "v/a/ uid=99", "v/a/ uid=-1", "v/a/ uid=4294967296", "v/a/ uid=5000 uid=0", "v/a/ mode=4755", "v/../../etc/x", "/../x",
		`"/../x"`, `"v/../x" uid=5000`, "v//../x", "v/./x", "v/..", "0", "-0", "00", "+0", " 0", "0x0", "4294967296", "2147483648", "5000\n0")
	boxes := string(text.VirtualMailboxMaps) + " "
	values := map[string]string{boxes + "plain@v.example": "v/plain/"}
	for i, s := range texts {
		values[boxes+"n"+strings.Repeat("n", i)+"@v.example"] = s
		if m, err := address.Parse(hostile.Quoted(s) + "@listed.example"); err == nil {
			values[boxes+strings.ToLower(m.Local)+"@listed.example"] = "quota=1M" // and no path
		}
	}
	server := newMapServer(t, values)
	c := withSources(t, map[string]string{"domains": "v.example\nlisted.example\n", "boxes": "x@listed.example mine\n"}, map[text.Kind][]string{
		text.VirtualMailboxDomains: {"domains"}, text.VirtualMailboxMaps: {"boxes", "socket:unix:" + server.path},
		text.VirtualUIDMaps: {"static:5000"}, text.VirtualGIDMaps: {"static:5000"},
	})
	delivered, waiting := 0, 0
	check := func(to, below string) {
		t.Helper()
		m, err := address.Parse(to)
		if err != nil {
			return
		}
		list, err := collect(c.Tables(), m, false)
		if err != nil {
			waiting++ // the table is to be put right
			return
		}
		for _, k := range list {
			if k.Channel == Error {
				continue
			}
			s, err := workspec.ParseVirtualStore(k.Host)
			if err != nil || k.Channel != Virtual || !inBase(s.Path, below) || k.Privilege < 100 || s.GID == 0 || s.Mode&^0o660 != 0 {
				t.Errorf("%q: %s %q as %d, %v", to, k.Channel, k.Host, k.Privilege, err)
			}
			delivered++
		}
	}
	check("plain@v.example", "/var/vmail/v")
	assert.Equal(t, delivered, 1, "a plain one")
	for i, s := range texts {
		check("n"+strings.Repeat("n", i)+"@v.example", "/var/vmail")
		check(hostile.Quoted(s)+"@listed.example", "/var/vmail")
		check(s+"@listed.example", "/var/vmail")
		for _, kind := range []text.Kind{text.VirtualUIDMaps, text.VirtualGIDMaps} {
			if e, err := parseEntry(kind, s); err == nil && (e.id == 0 || e.id > 1<<31-1) {
				t.Errorf("%q: %s %d", s, kind, e.id)
			}
		}
	}
	if delivered < 100 || waiting < 10 {
		t.Errorf("%d mailboxes, %d tables to be put right", delivered, waiting)
	}
}

// Op9: no recipient of a relay domain is one that its table has, except by its own name.
func TestNoTextIsARecipientThatRelayTablesDoNotHave(t *testing.T) {
	texts := hostile.Texts(t)
	mine := map[string]bool{"known": true}
	rcpts := string(text.RelayRecipientMaps) + " "
	server := map[string]string{rcpts + "known@asked.example": "x"}
	file := "known@relay.example\n"
	for i := 0; i < len(texts); i += 2 {
		m, err := address.Parse(hostile.Quoted(texts[i]) + "@relay.example")
		if err != nil || strings.ContainsAny(m.Local, "\r\n") || strings.Contains(m.Local, " #") || mine[strings.ToLower(m.Local)] {
			continue
		}
		mine[strings.ToLower(m.Local)] = true
		server[rcpts+strings.ToLower(m.Local)+"@asked.example"] = "x"
		file += hostile.Quoted(m.Local) + "@relay.example x\n"
	}
	c := withSources(t, map[string]string{"domains": "relay.example\nasked.example\n", "rcpts": file}, map[text.Kind][]string{
		text.RelayDomains: {"domains"}, text.RelayRecipientMaps: {"rcpts", "socket:unix:" + newMapServer(t, server).path},
	})
	known, unknown := 0, 0
	for _, s := range texts {
		for _, domain := range []string{"@relay.example", "@asked.example"} {
			for _, to := range []string{hostile.Quoted(s) + domain, s + domain} {
				m, err := address.Parse(to)
				if err != nil {
					continue
				}
				got, err := c.Tables().Verify(context.Background(), m)
				want := mine[strings.ToLower(m.Local)] || strings.EqualFold(m.Local, "postmaster")
				if err != nil || (got.Channel != Error) != want {
					t.Errorf("%q: got %+v, %v, want known %v", to, got, err, want)
				}
				if want {
					known++
				} else {
					unknown++
				}
			}
		}
	}
	if known < 200 || unknown < 200 {
		t.Errorf("%d known, %d unknown", known, unknown)
	}
}
