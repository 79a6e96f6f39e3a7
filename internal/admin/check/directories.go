package check

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// top looks at the postoffice's own directory.
func (x *checker) top() {
	entries, err := x.FS.ReadDir(".")
	if err != nil {
		x.tell(about(".", "unreadable").wrong(Unreadable, "%v", err))
	}
	for _, e := range entries {
		f, err := x.Stat(".", e.Name)
		if err != nil || slices.Contains(x.Dirs(), e.Name) {
			continue
		}
		r := about(e.Name, "unknown")
		role, pid := strings.CutPrefix(e.Name, ".pid.")
		switch {
		case pid && f.Info.Mode.IsRegular():
			r.State = "lock"
			if holder, held := x.Holder(f); held {
				r.say("It is locked by the one %s, pid %d.", role, holder)
			} else {
				r.say("The %s that made it is dead; the next one takes it.", role)
			}
		case f.Info.Mode&fs.ModeSocket != 0:
			r.State = "socket"
			r.say("A program listens here, or did.")
		case e.Name == postoffice.FreezeFlag:
			r.State = "frozen"
			r.say("The scheduler is not started while it is there; zmctl thaw-service takes it away.")
		case e.Name == postoffice.AlarmFile || e.Name == postoffice.AlarmFile+".new":
			r.State = "alarms"
			r.say("The scheduler writes into it what needs a person; zmctl status shows it.")
		case durable.IsProbe(e.Name) && f.Info.Mode.IsRegular():
			r.State = "probe"
			r.say("A program that starts tries a rename with it; what a killed one has left is removed by the next.")
		case strings.HasPrefix(e.Name, ".web.") && f.Info.Mode.IsRegular():
			r.State = "of zmctl web"
			r.say("Its token, or what it has counted; it makes them anew.")
		case e.Name == postoffice.Staging && f.Info.Mode.IsDir():
			r.State = "of an earlier version"
			r.say("Empty files of version 0.0; the scheduler removes it when it starts.")
		case isLog(e.Name) && f.Info.Mode.IsRegular():
			r.State = "log"
			r.say("The log of zmctl start, which LOGFILE can put elsewhere; an old one may be removed.")
		case e.Name == "lost+found":
			r.State = "of the file system"
			r.say("fsck puts here what it finds without a name; look into it after a crash.")
		default:
			r.wrong(ForeignName, "No program of ours makes it, and none looks at it. Move it away if nobody needs it here.")
		}
		x.tell(r)
	}
}

// isLog tells the log of zmctl start, and what logrotate(8) makes of it.
func isLog(name string) bool {
	rest, ok := strings.CutPrefix(name, postoffice.LogFile)
	return ok && (rest == "" || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "-"))
}

// directories looks at the directories themselves, hash directories with them.
func (x *checker) directories() {
	root, err := x.FS.Stat(".")
	if err != nil {
		x.tell(about(".", "unreadable").wrong(Unreadable, "%v", err))
		return
	}
	r := about("./", "postoffice")
	if root.Mode&0o022 != 0 {
		r.wrong(WrongMode, "Its mode is %v: others could rename its directories. chmod go-w it.", root.Mode)
	}
	x.tell(r.say("It belongs to uid %d.", root.UID))
	for _, dir := range x.Dirs() {
		_, always, _ := postoffice.Mode(dir)
		mode := x.PO.ModeOf(dir) & ModeBits
		info, err := x.FS.Stat(dir)
		r := about(dir+"/", "directory")
		switch {
		case errors.Is(err, fs.ErrNotExist) && !always:
			r.State = "absent"
			r.say("It is made when it is first needed.")
		case err != nil:
			r.wrong(MissingDirectory, "%v. zmctl init makes what is missing.", err)
		default:
			x.directory(r.say("%s", purpose(dir)), view.File{Dir: ".", Name: dir, Info: info}, root.Dev, root.UID, mode)
		}
		x.tell(r)
		if err == nil && (dir == postoffice.Queue || dir == postoffice.Transport) {
			x.EachHashDir(dir, func(f view.File) {
				r := about(f.Path()+"/", "hash directory").say("Files whose inode number leads here.")
				x.directory(r, f, root.Dev, info.UID, HashMode(f.Info.Mode, mode))
				x.tell(r)
			})
		}
	}
}

// purpose is what a directory is for.
func purpose(dir string) string {
	if dir == postoffice.Router0 {
		return "Accepted messages wait here for a router: router/ is open to users."
	}
	if dir != postoffice.Router && postoffice.IsRouterDir(dir) {
		return "Accepted messages wait here until the directories before it are empty."
	}
	switch dir {
	case postoffice.Public:
		return "Messages are written here."
	case postoffice.Router:
		return "Accepted messages wait here for a router."
	case postoffice.Queue:
		return "Message files that are routed."
	case postoffice.Transport:
		return "Their work specifications."
	case postoffice.Deferred:
		return "Messages that could not be routed."
	case postoffice.Postman:
		return "Messages and copies for the postmaster."
	case postoffice.Freezer:
		return "Messages held by policy."
	case postoffice.Owners:
		return "One locked file for each live process."
	case postoffice.Quarantine:
		return "What no program can use."
	case postoffice.Removed:
		return "Messages that a person removed."
	case postoffice.Ledger:
		return "The account of all mail."
	case postoffice.Orders:
		return "What people ordered about queued mail."
	case postoffice.Imports:
		return "What was taken from other mail systems, and what is on its way in."
	case postoffice.STS:
		return "MTA-STS policies of other domains, a file each."
	case postoffice.TLSRPT:
		return "What became of TLS towards other hosts, a file for each day."
	}
	return ""
}

// hashMode is the mode that a hash directory should have: the one that it has if nobody else
// can write there. The directory above it is closed, so that one made by hand is as good.
func HashMode(have, made fs.FileMode) fs.FileMode {
	if have&(0o022|fs.ModeSticky) == 0 && have&0o700 == 0o700 {
		return have & ModeBits
	}
	return made
}

// ModeBits are what is compared of a directory's mode.
const ModeBits = fs.ModePerm | fs.ModeSticky

// directory judges one directory.
func (x *checker) directory(r *report, f view.File, dev uint64, uid uint32, mode fs.FileMode) {
	if got := f.Info.Mode & ModeBits; got != mode {
		r.wrong(WrongMode, "Its mode is %v, it is made with %v. %s", got, mode, modeMatters(got, mode))
	}
	if f.Info.UID != uid {
		r.wrong(WrongOwner, "It belongs to uid %d, what is above it to uid %d: the daemons may be unable to move files here. chown it.", f.Info.UID, uid)
	}
	if f.Info.Dev != dev {
		r.wrong(OtherDevice, "It is on another file system: a message cannot be renamed into it. Put both on one.")
	}
}

// modeMatters says what a wrong mode means.
func modeMatters(got, want fs.FileMode) string {
	switch {
	case got&0o002 != 0 && want&0o002 == 0:
		return "Anybody can put files here. zmctl check --repair sets it."
	case want&0o002 != 0 && got&0o002 == 0:
		return "Others than its owner cannot submit mail. zmctl check --repair sets it, if that is not what you want."
	case want&fs.ModeSticky != 0 && got&fs.ModeSticky == 0:
		return "Anybody can remove others' mail. zmctl check --repair sets it."
	}
	return "zmctl check --repair sets it, if that is not what you want."
}

// kept looks at what daemons never route: quarantine/, removed/, ledger/, orders/ and
// imports/.
func (x *checker) kept() {
	looks := map[string]func(f view.File){
		postoffice.Quarantine: func(f view.File) {
			x.tell(about(f.Path(), "quarantined").wrong(Quarantined,
				"Nothing takes it up. Its name says where it was and why it was put here. When nothing of it is needed any more, remove it."))
		},
		postoffice.Removed: func(f view.File) {
			if !view.IsRemoved(f) {
				x.foreign(f, "No name of a message that a person removed.")
				return
			}
			x.tell(about(f.Path(), "removed").say("A person removed this message. zmctl undo brings it back while it is kept."))
		},
		postoffice.Ledger: func(f view.File) {
			if !IsLedger(f) {
				x.foreign(f, "The ledger makes no such name.")
				return
			}
			r := about(f.Path(), "ledger").say("The account of what was accepted and what became of it.")
			if strings.HasPrefix(f.Name, "journal.") {
				r.say("The scheduler folds it into base when nobody writes it any more.")
			}
			x.tell(r)
		},
		postoffice.Orders: func(f view.File) {
			if !view.IsOrder(f) {
				x.foreign(f, "No name of an order.")
				return
			}
			x.tell(about(f.Path(), "order").say("A person ordered this about queued mail. zmctl orders tells it, zmctl undo may take it back."))
		},
		postoffice.Imports: func(f view.File) {
			if strings.HasPrefix(f.Name, "import-") {
				x.tell(about(f.Path(), "importing").say("A message of another mail system, on its way in; the same zmctl import again ends it."))
				return
			}
			x.tell(about(f.Path(), "import").say("What zmctl import has taken; the same import again takes nothing twice while it is here."))
		},
	}
	for _, dir := range []string{postoffice.Quarantine, postoffice.Removed, postoffice.Ledger, postoffice.Orders, postoffice.Imports} {
		if x.Exists(dir) {
			x.each(dir, looks[dir])
		}
	}
}

// isLedger tells a name in ledger/.
func IsLedger(f view.File) bool {
	name, _, _ := strings.Cut(f.Name, ".")
	return f.Info.Mode.IsRegular() && (name == "journal" || name == "base")
}

// owned looks at owners/.
func (x *checker) owned() {
	x.each(postoffice.Owners, func(f view.File) {
		n, ok := postoffice.ParseName(f.Name)
		if !ok || n.Owner != 0 || n.Ino > postoffice.MaxOwner || !f.Info.Mode.IsRegular() {
			x.tell(about(f.Path(), "unknown").wrong(ForeignName, "No process of ours makes such a name; remove it, or zmctl check --repair puts it into quarantine/."))
			return
		}
		o := x.Owner(int(n.Ino))
		if o.Alive {
			x.tell(about(f.Path(), "alive").say("It is the number of %s.", o))
			return
		}
		x.tell(about(f.Path(), "dead").say("It was the number of %s. The number is not given out again while the file is there;", o).
			say("the scheduler removes it when no name and no lock has borne it for some minutes."))
	})
}
