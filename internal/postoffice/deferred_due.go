package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"zmailer/internal/disk/durable"
)

// Waiting is a message in deferred/. Its file says all that a schedule needs: ModTime is
// when it arrived, and CTime when it was put aside last, by the rename. ls -l and ls -lc
// show both.
type Waiting struct {
	Name string // below deferred/
	Why  string // the word in its name
	ID   SpoolID
	Info durable.Info
}

// WhyCrash is the word of a message that has ended too many routers. It is put into
// deferred/ if its name in postman/ is taken, and no program gives it back.
const WhyCrash = "crash"

// ListWaiting lists the messages in deferred/ that a router may try again by itself: not
// one that has ended routers, and not one that is also under another name, as after a
// copy by links, which would be delivered twice.
func (p *PostOffice) ListWaiting() ([]Waiting, error) {
	names, err := p.ListDeferred()
	if err != nil {
		return nil, err
	}
	var list []Waiting
	for _, name := range names {
		_, why, _ := strings.Cut(name, ".")
		if why == WhyCrash {
			continue
		}
		info, err := p.fs.Stat(Deferred + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another router has it
		}
		if err != nil {
			return nil, fmt.Errorf("list deferred: %w", err)
		}
		if !info.Mode.IsRegular() || info.Nlink > 1 && !p.hasCopies(info) {
			continue
		}
		list = append(list, Waiting{Name: name, Why: why, ID: IDOf(info), Info: info})
	}
	return list, nil
}

// ClaimWaiting takes deferred/name as a claim of this router, for a last attempt: by one
// rename, so that no other router has it between deferred/ and the claim. ErrGone:
// another one did, or another message is there by now. The errors of Claim hold, too: the
// message is in router/ then. A Claim beside an error could not be given back there.
func (p *PostOffice) ClaimWaiting(o *Owner, w Waiting) (*Claim, error) {
	from, dir := Deferred+"/"+w.Name, p.RouterDir()
	if _, err := p.same(Deferred, w.Name, w.ID); err != nil {
		return nil, fmt.Errorf("claim %s: %w", from, err)
	}
	mine := Name{Ino: w.ID.Ino, Owner: o.n}
	// Crash: deferred/I.why, or router/I-P, which is given back to router/ and routed in the
	// usual way: it is deferred again, and given up later.
	if err := p.move(from, dir+"/"+mine.String()); err != nil {
		return nil, fmt.Errorf("claim %s: %w", from, err)
	}
	if err := p.syncDirs(Deferred, dir); err != nil {
		return p.unclaim(dir, mine, err)
	}
	c, err := p.openClaim(dir, mine)
	if err != nil && !errors.Is(err, ErrGone) {
		return p.unclaim(dir, mine, err)
	}
	return c, err
}

// unclaim gives a claim that is not open back to its router directory.
func (p *PostOffice) unclaim(dir string, n Name, cause error) (*Claim, error) {
	// Crash: the claim, or the message free to be claimed.
	err := p.move(dir+"/"+n.String(), dir+"/"+strconv.FormatUint(n.Ino, 10))
	if err != nil && !errors.Is(err, ErrGone) {
		return &Claim{p: p, dir: dir, name: n, text: n.String(), done: true}, errors.Join(cause, err)
	}
	return nil, cause
}
