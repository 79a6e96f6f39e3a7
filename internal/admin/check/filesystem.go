package check

import (
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/filesystem"
)

// fileSystem reports on the file system of the postoffice. Risks that
// exist only at a power loss are reported, and do not change the exit code.
func (x *layout) fileSystem() {
	disk, ok := x.FS.(*durable.OS)
	if !ok {
		return
	}
	r := about(".", "file system")
	r.part = "file system"
	found, err := filesystem.Look(disk.Dir(), x.PO.Strict(), true)
	if err != nil {
		x.add(r.say("Its file system cannot be identified: %v.", err))
		return
	}
	r.say("It is on %s.", found.Mount)
	if found.Unusable != nil {
		r.wrong(NoRename, "It can neither rename a file without replacing another nor link it (%v), so no message can be moved: %s.", found.Unusable, filesystem.Remedy)
	}
	if found.Links {
		r.say("It has no RENAME_NOREPLACE: messages are moved by link and unlink (docs/spool.md).")
	}
	for _, risk := range found.Risks {
		r.say("Risk: %s. Remedy: %s.", risk.Text, risk.Remedy)
	}
	x.add(r)
}
