package repair

import (
	"errors"
	"io/fs"
	"strings"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// planner plans the steps of a repair. It only reads.
type planner struct {
	*view.Spool
	exclusive bool // no scheduler runs, and none can start
	steps     []Step
	errs      []error
	done      map[string]bool // files that a step moves away
	id        string          // of the message under inspection
}

func (p *planner) plan() {
	p.done = map[string]bool{}
	p.directories()
	p.twice()
	p.queue()
	for _, dir := range p.RouterDirs() {
		p.router(dir)
	}
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		p.aside(dir)
	}
	p.public()
	p.owned()
	p.kept()
}

// kept quarantines foreign names in removed/, ledger/ and orders/.
func (p *planner) kept() {
	p.id = ""
	for dir, ours := range map[string]func(f view.File) bool{postoffice.Removed: view.IsRemoved, postoffice.Ledger: check.IsLedger, postoffice.Orders: view.IsOrder} {
		if !p.Exists(dir) {
			continue
		}
		for _, f := range p.names(dir) {
			if !ours(f) {
				p.foreign(f)
			}
		}
	}
}

// add plans a step.
func (p *planner) add(file, action, text string, do func(m *mender) error) {
	p.steps = append(p.steps, Step{File: file, Action: action, Text: text, id: p.id, do: do})
}

// addQueue plans a step on files that no scheduler may have loaded.
func (p *planner) addQueue(file, action, text string, do func(m *mender) error) {
	p.add(file, action, text, do)
	s := &p.steps[len(p.steps)-1]
	switch {
	case !p.exclusive:
		s.Left = "a scheduler or another repair is running and may use this message. Stop it, then repair again"
	case p.agents():
		s.Left = "transport agents of a dead scheduler are still running. Wait until they have exited, then repair again"
	}
}

// agents reports whether transport agents are running.
func (p *planner) agents() bool {
	all, err := p.EveryOwner()
	for _, o := range all {
		if o.Alive && strings.HasPrefix(o.Role(), "ta-") {
			return true
		}
	}
	return err != nil
}

// quarantine plans to move a name to quarantine/.
func (p *planner) quarantine(f view.File, why, text string) {
	p.done[f.Path()] = true
	p.add(f.Path(), doQuarantine, text, func(m *mender) error { return m.quarantine(f.Path(), why) })
}

// names lists a directory and records errors.
func (p *planner) names(dir string) []view.File {
	files, err := p.List(dir)
	if err != nil {
		p.errs = append(p.errs, err)
	}
	kept := files[:0]
	for _, f := range files {
		if !p.done[f.Path()] {
			kept = append(kept, f)
		}
	}
	return kept
}

func (p *planner) directories() {
	for _, dir := range p.Dirs() {
		mode := p.PO.ModeOf(dir) & check.ModeBits
		info, err := p.FS.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			p.add(dir, doMake, "it is missing", func(m *mender) error { return m.po.Ensure(dir) })
			continue
		}
		if err != nil {
			p.errs = append(p.errs, err)
			continue
		}
		p.mode(dir, info, mode)
		if dir == postoffice.Queue || dir == postoffice.Transport {
			p.EachHashDir(dir, func(f view.File) { p.mode(f.Path(), f.Info, check.HashMode(f.Info.Mode, mode)) })
		}
	}
}

// mode plans to set a directory's mode.
func (p *planner) mode(dir string, info durable.Info, mode fs.FileMode) {
	if info.Mode&check.ModeBits != mode {
		p.add(dir, doMode, "its mode is "+info.Mode.String()+"; it is set to "+(mode|fs.ModeDir).String(), func(m *mender) error { return m.SetMode(dir) })
	}
}

// twice quarantines the second name of a file that would be delivered twice, and messages
// that a copy of a running postoffice contains twice.
func (p *planner) twice() {
	var all []check.Mail
	ranks := map[string]int{postoffice.Deferred: check.RankAside,
		postoffice.Freezer: check.RankAside, postoffice.Postman: check.RankAside, postoffice.Queue: check.RankQueue}
	for _, dir := range p.RouterDirs() {
		ranks[dir] = check.RankRouter
	}
	for _, dir := range p.PO.Submissions.Inboxes() {
		ranks[dir] = check.RankPublic
	}
	for dir, rank := range ranks {
		for _, f := range p.names(dir) {
			n, ok := p.mailName(f)
			if ok {
				all = append(all, check.Mail{File: f, Number: n, Rank: rank})
			}
		}
	}
	for _, t := range check.Pairs(p.Spool, all) {
		p.id = postoffice.IDOf(t.Lesser.Info).String()
		if !t.Sure || p.done[t.Lesser.Path()] || p.done[t.Kept.Path()] {
			continue
		}
		why, text := "copy", "it is the message "+t.Kept.Path()+", which is in a later stage; both had the spool ID "+t.Lesser.Was().String()
		if t.Linked {
			why, text = "duplicate", "it is a second name of "+t.Kept.Path()
		}
		if t.Lesser.Dir != postoffice.Queue {
			p.quarantine(t.Lesser.File, why, text)
			continue
		}
		p.done[t.Lesser.Path()] = true
		p.addQueue(t.Lesser.Path(), doQuarantine, text, func(m *mender) error { return m.quarantine(t.Lesser.Path(), why) })
	}
}

func (p *planner) mailName(f view.File) (n postoffice.Name, ok bool) {
	if f.Dir == postoffice.Queue {
		n, ok = postoffice.ParseName(f.Name)
		return n, ok && f.Info.Mode.IsRegular()
	}
	k := p.KindOf(f)
	switch k.State {
	case "", view.StateCopy, view.StateWriting:
		return n, false
	}
	if f.Dir == postoffice.Public {
		k.Name.Ino = f.Info.Ino
	}
	return k.Name, true
}

// renumbered describes the change of a message's spool ID.
func renumbered(f view.File, n postoffice.Name) string {
	was := postoffice.SpoolID{Ino: n.Ino, MTime: f.Info.ModTime.UnixNano()}
	return was.String() + " is " + postoffice.IDOf(f.Info).String() + " now"
}

// router renames files after their inodes if no router does, and quarantines files that
// routers ignore.
func (p *planner) router(dir string) {
	for _, f := range p.names(dir) {
		p.id = postoffice.IDOf(f.Info).String()
		k := p.KindOf(f)
		_, tries := postoffice.TriesMarker(f.Name)
		switch {
		case tries && f.Info.Mode.IsRegular() || k.Work || postoffice.IsPickup(f.Name):
		case k.State == "":
			p.foreign(f)
		case k.Name.Fits(f.Info.Ino) || p.Runs("router"):
		case k.Name.Owner != 0 && p.Owner(k.Name.Owner).Alive:
		default:
			p.add(f.Path(), doRenumber, renumbered(f, k.Name), func(m *mender) error { return m.requeue(f.Path()) })
		}
	}
}

// aside renames files in deferred/, freezer/ and postman/ after their inodes.
func (p *planner) aside(dir string) {
	for _, f := range p.names(dir) {
		p.id = postoffice.IDOf(f.Info).String()
		k := p.KindOf(f)
		switch {
		case view.IsReason(f):
		case k.State == "":
			p.foreign(f)
		case !k.Name.Fits(f.Info.Ino) || strings.HasSuffix(f.Name, postoffice.Renumbered):
			p.add(f.Path(), doRenumber, renumbered(f, k.Name), func(m *mender) error { return m.renumberAside(f.Path()) })
		}
	}
}

// foreign quarantines a name that no program uses. In directories where other programs
// write, a file may be incomplete: it is left alone for an hour.
func (p *planner) foreign(f view.File) {
	shared := f.Dir == postoffice.Public || postoffice.IsRouterDir(f.Dir)
	if shared && f.Info.Mode.IsRegular() && p.Now.Sub(f.Info.ModTime) < check.DraftGrace {
		return
	}
	p.quarantine(f, "foreign", "no program of this system creates or uses such a name")
}

// public quarantines files that no process will complete.
func (p *planner) public() {
	list, err := p.PO.Submissions.Unfinished(p.Now, postoffice.BootTime())
	if err != nil {
		p.errs = append(p.errs, err)
	}
	why := map[string]postoffice.Recovered{}
	for _, r := range list {
		why[r.Name] = r
	}
	for _, f := range p.names(postoffice.Public) {
		p.id = postoffice.IDOf(f.Info).String()
		r, unfinished := why[f.Path()]
		_, held := p.Holder(f)
		switch {
		case unfinished:
			p.quarantine(f, r.Action, r.Detail)
		case !f.Info.Mode.IsRegular():
			p.foreign(f)
		case p.KindOf(f).State == view.StateWriting && !held && p.Now.Sub(f.Info.ModTime) >= check.DraftGrace && !strings.HasPrefix(f.Name, postoffice.ReportPrefix+".") && !strings.HasPrefix(f.Name, postoffice.CopyPrefix+"."):
			p.quarantine(f, "unfinished", "not written to for an hour; it was never acknowledged to its submitter")
		}
	}
}

// owned quarantines names in owners/ that are not numbers.
func (p *planner) owned() {
	p.id = ""
	for _, f := range p.names(postoffice.Owners) {
		if postoffice.IsSpare(f.Name) && f.Info.Mode.IsRegular() {
			continue
		}
		n, ok := postoffice.ParseName(f.Name)
		if !ok || n.Owner != 0 || n.Ino > postoffice.MaxOwner || !f.Info.Mode.IsRegular() {
			p.quarantine(f, "foreign", "no process of this system creates such a name")
		}
	}
}
