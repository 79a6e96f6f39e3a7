package check

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
)

// layout inspects the daemons, the file system, and directories that no message is routed from.
type layout struct{ *pass }

// daemons warns of missing daemons.
func (x *layout) daemons() {
	for _, role := range []string{"router", "scheduler"} {
		if x.Runs(role) {
			x.add(about(role, "running").say("It is running."))
		} else {
			x.add(about(role, "not running").wrong(DaemonMissing, "No mail is processed without it; zmctl start starts the daemons."))
		}
	}
}

// top inspects the postoffice's own directory.
func (x *layout) top() {
	entries, err := x.FS.ReadDir(".")
	if err != nil {
		x.add(about(".", "unreadable").wrong(Unreadable, "%v", err))
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
				r.say("It is locked by the running %s, pid %d.", role, holder)
			} else {
				r.say("The %s that created it is dead; the next one takes it over.", role)
			}
		case f.Info.Mode&fs.ModeSocket != 0:
			r.State = "socket"
			r.say("A program listens here, or has listened here.")
		case e.Name == postoffice.FreezeFlag:
			r.State = "frozen"
			r.say("The scheduler does not start while this file exists; zmctl thaw-service removes it.")
		case e.Name == postoffice.AlarmFile || e.Name == postoffice.AlarmFile+".new":
			r.State = "alarms"
			r.say("The scheduler writes its alarms into this file; zmctl status shows them.")
		case e.Name == postoffice.EarlierSuspensions || e.Name == postoffice.EarlierSuspensions+".new" || e.Name == "."+postoffice.EarlierSuspensions+".lock":
			r.State = "suspensions"
			r.say("An earlier version kept here what operators have suspended; smtpserver moves it to suspended/ when it starts.")
		case e.Name == lastgood.SubmitFile || e.Name == lastgood.SubmitFile+".new":
			r.State = "settings of submit"
			r.say("The scheduler writes it; submit goes by it while zmailer.conf cannot be used.")
		case e.Name == postoffice.Epochs && f.Info.Mode.IsDir():
			r.State = "epoch"
			if epoch, err := x.PO.Epochs.Read(); err != nil {
				r.wrong(Unreadable, "%v", err)
			} else {
				r.say("Node %s serves the postoffice since its claim %d.", epoch.Node, epoch.Number)
			}
		case durable.IsProbe(e.Name):
			r.State = "probe"
			r.say("A starting program tests the file system with it; the next program removes what a killed one has left.")
		case strings.HasPrefix(e.Name, ".web.") && f.Info.Mode.IsRegular():
			r.State = "of zmctl web"
			r.say("Its token or its counters; it creates them again if they are missing.")
		case e.Name == postoffice.Staging && f.Info.Mode.IsDir():
			r.State = "of an earlier version"
			r.say("Empty files of version 0.0; the scheduler removes the directory when it starts.")
		case isLog(e.Name) && f.Info.Mode.IsRegular():
			r.State = "log"
			r.say("The log of zmctl start; LOGFILE sets another path. You may remove old logs.")
		case e.Name == "lost+found":
			r.State = "of the file system"
			r.say("fsck puts files without a name here; inspect it after a crash.")
		default:
			r.wrong(ForeignName, "No program of this system creates or uses it. Move it away if it is not needed here.")
		}
		x.add(r)
	}
}

// isLog reports whether a name is that of the log of zmctl start, or of a rotated one.
func isLog(name string) bool {
	rest, ok := strings.CutPrefix(name, postoffice.LogFile)
	return ok && (rest == "" || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "-"))
}

// directories inspects the directories themselves, including hash directories.
func (x *layout) directories() {
	root, err := x.FS.Stat(".")
	if err != nil {
		x.add(about(".", "unreadable").wrong(Unreadable, "%v", err))
		return
	}
	r := about("./", "postoffice")
	if root.Mode&0o022 != 0 {
		r.wrong(WrongMode, "Its mode is %v: others could rename its directories. chmod go-w it.", root.Mode)
	}
	x.add(r.say("It belongs to uid %d.", root.UID))
	for _, dir := range x.Dirs() {
		_, always, _ := postoffice.Mode(dir)
		mode := x.PO.ModeOf(dir) & ModeBits
		info, err := x.FS.Stat(dir)
		r := about(dir+"/", "directory")
		switch {
		case errors.Is(err, fs.ErrNotExist) && !always:
			r.State = "absent"
			r.say("It is created when it is first needed.")
		case err != nil:
			r.wrong(MissingDirectory, "%v. zmctl init creates it.", err)
		default:
			x.directory(r.say("%s", purpose(dir)), view.File{Dir: ".", Name: dir, Info: info}, root.Dev, root.UID, mode)
		}
		x.add(r)
		if err == nil && (dir == postoffice.Queue || dir == postoffice.Transport) {
			x.EachHashDir(dir, func(f view.File) {
				r := about(f.Path()+"/", "hash directory").say("Files whose inode numbers hash to this directory.")
				x.directory(r, f, root.Dev, info.UID, HashMode(f.Info.Mode, mode))
				x.add(r)
			})
		}
	}
}

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
		return "Routed messages."
	case postoffice.Transport:
		return "Work specifications of routed messages."
	case postoffice.Deferred:
		return "Messages that could not be routed."
	case postoffice.Postman:
		return "Messages and copies for the postmaster."
	case postoffice.Freezer:
		return "Messages held by policy."
	case postoffice.Owners:
		return "One locked file for each live process."
	case postoffice.Quarantine:
		return "Files that no program can use."
	case postoffice.Removed:
		return "Messages that an operator removed."
	case postoffice.Ledger:
		return "Records of all accepted mail and its outcome."
	case postoffice.Orders:
		return "Operations of operators on queued mail."
	case postoffice.Imports:
		return "Records of imports from other mail systems, and messages being imported."
	case postoffice.STS:
		return "MTA-STS policies of other domains, a file each."
	case postoffice.TLSRPT:
		return "Results of TLS with other hosts, a file for each day."
	case postoffice.LastGood:
		return "Copies of tables, keys and certificates as they were when they could be used."
	case postoffice.Verify:
		return "The answers of other hosts to address verification."
	case postoffice.Suspended:
		return "What operators have suspended; zmctl suspend lists and changes it."
	}
	return ""
}

// HashMode returns the mode that a hash directory should have: its present mode if no other
// user can write there. The directory above it is closed, so a directory made by hand is as
// good.
func HashMode(have, made fs.FileMode) fs.FileMode {
	if have&(0o022|fs.ModeSticky) == 0 && have&0o700 == 0o700 {
		return have & ModeBits
	}
	return made
}

// ModeBits are the bits of a directory's mode that are compared.
const ModeBits = fs.ModePerm | fs.ModeSticky

func (x *layout) directory(r *report, f view.File, dev uint64, uid uint32, mode fs.FileMode) {
	if got := f.Info.Mode & ModeBits; got != mode {
		r.wrong(WrongMode, "Its mode is %v; it should be %v. %s", got, mode, modeMatters(got, mode))
	}
	if f.Info.UID != uid {
		r.wrong(WrongOwner, "It belongs to uid %d, the directory above it to uid %d: the daemons may be unable to move files here. chown it.", f.Info.UID, uid)
	}
	if f.Info.Dev != dev {
		r.wrong(OtherDevice, "It is on another file system: a message cannot be renamed into it. Move both to one file system.")
	}
}

// modeMatters describes the effect of a wrong mode.
func modeMatters(got, want fs.FileMode) string {
	switch {
	case got&0o002 != 0 && want&0o002 == 0:
		return "Any user can create files here. zmctl check --repair sets the mode."
	case want&0o002 != 0 && got&0o002 == 0:
		return "Only its owner can submit mail. If that is not intended, zmctl check --repair sets the mode."
	case want&fs.ModeSticky != 0 && got&fs.ModeSticky == 0:
		return "Any user can remove other users' mail. zmctl check --repair sets the mode."
	}
	return "If that is not intended, zmctl check --repair sets the mode."
}

// kept inspects directories that daemons never route from: quarantine/, removed/, ledger/, orders/ and
// imports/.
func (x *layout) kept() {
	looks := map[string]func(f view.File){
		postoffice.Quarantine: func(f view.File) {
			x.add(about(f.Path(), "quarantined").wrong(Quarantined,
				"No program uses it. Its name contains its former directory and the reason. Remove it when it is no longer needed."))
		},
		postoffice.Removed: func(f view.File) {
			if !view.IsRemoved(f) {
				x.foreign(f, "Not the name of a removed message.")
				return
			}
			x.add(about(f.Path(), "removed").say("An operator removed this message. zmctl undo can restore it until it is deleted."))
		},
		postoffice.Ledger: func(f view.File) {
			if !IsLedger(f) {
				x.foreign(f, "Not the name of a ledger file.")
				return
			}
			r := about(f.Path(), "ledger").say("A record of accepted mail and its outcome.")
			if strings.HasPrefix(f.Name, "journal.") {
				r.say("The scheduler merges it into base when no process writes it any more.")
			}
			x.add(r)
		},
		postoffice.Orders: func(f view.File) {
			if !view.IsOrder(f) {
				x.foreign(f, "Not the name of an operation.")
				return
			}
			x.add(about(f.Path(), "order").say("The record of an operation on queued mail. zmctl orders shows it, and zmctl undo may undo it."))
		},
		postoffice.Imports: func(f view.File) {
			if strings.HasPrefix(f.Name, "import-") {
				x.add(about(f.Path(), "importing").say("A message that is being imported; run the same zmctl import again to complete it."))
				return
			}
			x.add(about(f.Path(), "import").say("The record of imported messages; while it exists, the same import imports no message twice."))
		},
	}
	for _, dir := range []string{postoffice.Quarantine, postoffice.Removed, postoffice.Ledger, postoffice.Orders, postoffice.Imports} {
		if x.Exists(dir) {
			x.each(dir, looks[dir])
		}
	}
}

// IsLedger reports whether a file is part of the ledger.
func IsLedger(f view.File) bool {
	name, _, _ := strings.Cut(f.Name, ".")
	return f.Info.Mode.IsRegular() && (name == "journal" || name == "base")
}

// owned inspects owners/.
func (x *layout) owned() {
	x.each(postoffice.Owners, func(f view.File) {
		if postoffice.IsSpare(f.Name) && f.Info.Mode.IsRegular() {
			return
		}
		n, ok := postoffice.ParseName(f.Name)
		if !ok || n.Owner != 0 || n.Ino > postoffice.MaxOwner || !f.Info.Mode.IsRegular() {
			x.add(about(f.Path(), "unknown").wrong(ForeignName, "No process of this system creates such a name; remove it, or zmctl check --repair puts it into quarantine/."))
			return
		}
		o := x.Owner(int(n.Ino))
		if o.Alive {
			x.add(about(f.Path(), "alive").say("It is the owner number of %s.", o))
			return
		}
		x.add(about(f.Path(), "dead").say("It was the owner number of %s. The number is not reused while the file exists;", o).
			say("the scheduler removes it when no name and no lock has contained it for some minutes."))
	})
}
