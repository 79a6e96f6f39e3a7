// Package filesystem looks, when a daemon starts and when zmctl checks, whether the file
// system of the postoffice keeps what docs/durability.md needs.
//
// It owns nothing on the disk but an empty file for a moment, .probe.* in the postoffice's
// own directory, with which it tries a rename, and a directory of that name, in which Measure
// tries what the postoffice needs. What a killed process has left is removed by the next look.
//
// Diagnostics: a *config.Error if the postoffice cannot work there at all: it names the file
// system and the remedy. A risk that only a loss of power brings is a line in the log.
package filesystem

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/config"
)

// Found is what is to be said of a file system.
type Found struct {
	durable.Mount
	Risks []durable.Risk
	// Links reports that files are moved by link and unlink.
	Links bool
	// Missing is what a postoffice needs and this file system does not have. It is looked for
	// where a kind is not known to have it, unless Look is quiet.
	Missing []Property
	// Unusable is why no message can be moved there; nil: it can be, or could not be tried.
	Unusable error
}

// Remedy is what to do where Found.Unusable is set.
const Remedy = "move the postoffice to a file system that has renameat2(RENAME_NOREPLACE), as ext4, xfs and btrfs have, or link(2), as GlusterFS, NFS and CephFS have (docs/durability.md)"

// Look finds the file system of a postoffice and tries a rename in it. Where quiet is set
// it tries none on a kind that is known to have what is needed, and changes nothing there.
func Look(dir string, strict, quiet bool) (Found, error) {
	m, err := durable.MountOf(dir)
	if err != nil {
		return Found{}, err
	}
	found := Found{Mount: m, Risks: m.Risks(strict)}
	if quiet && m.Renames() {
		return found, nil
	}
	f, err := durable.NewOS(dir)
	if err != nil {
		return Found{}, err
	}
	defer f.Close()
	// A daemon that is not root may not be able to make names in the first.
	dirs := []string{".", "router", "owners"}
	found.Unusable = durable.ProbeRename(f, dirs...)
	if errors.Is(found.Unusable, durable.ErrNoRenameNew) {
		found.Links = true
		if err := durable.ProbeLink(f, dirs...); err != nil {
			found.Unusable = errors.Join(found.Unusable, err)
		} else {
			found.Unusable = nil
		}
	}
	if quiet || m.Renames() {
		return found, nil
	}
	// Where nothing can be made nothing is known.
	list, _ := Measure(dir, dirs...)
	for _, p := range list {
		if p.IsMissing() {
			found.Missing = append(found.Missing, p)
		}
	}
	return found, nil
}

// Check is called by a daemon before it takes or moves anything. It logs the risks.
func Check(settings *config.Config, log *slog.Logger) error {
	dir := settings.PostOffice()
	found, err := Look(dir, settings.String("SYNC", "normal") == "strict", false)
	if err != nil {
		// Whoever opens the postoffice next says what is wrong with it.
		return nil
	}
	if found.Unusable != nil {
		return &config.Error{File: dir, Reason: "POSTOFFICE cannot be used: " + found.Mount.String() +
			" can neither rename a file without replacing another nor link it, and no message could be moved; " + Remedy, Err: found.Unusable}
	}
	if len(found.Missing) > 0 {
		var lines []string
		for _, p := range found.Missing {
			lines = append(lines, fmt.Sprintf("%s (%s: %s)", p.Name, p.Tried, p.Result))
		}
		return &config.Error{File: dir, Reason: "POSTOFFICE cannot be used: " + found.Mount.String() + " lacks what a postoffice needs: " +
			strings.Join(lines, ", ") + "; zmctl check --filesystem " + dir + " shows all that was tried; " + Remedy}
	}
	for _, r := range found.Risks {
		log.Warn("file-system", "dir", dir, "type", found.Kind, "source", found.Source, "mount", found.Point, "reason", r.Text, "advice", r.Remedy)
	}
	return nil
}
