package main

import (
	"cmp"
	"crypto/sha256"
	"io"
	"slices"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
)

// Where a message is, by how far it has come: of two files of one message the one
// that has come farther counts.
const (
	rankPublic = iota
	rankRouter
	rankAside
	rankQueue
)

// mail is a message file that stands for a message, so not a copy for the postmaster.
type mail struct {
	view.File
	name postoffice.Name
	rank int
}

// was is the spool ID that the file had under the number in its name.
func (m *mail) was() postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.name.Ino, MTime: m.Info.ModTime.UnixNano()}
}

func (m *mail) misnumbered() bool { return !m.name.Fits(m.Info.Ino) }

// note remembers a message file for twice.
func (x *checker) note(f view.File, n postoffice.Name, rank int) {
	x.mail = append(x.mail, mail{f, n, rank})
}

// twice finds messages that would be delivered twice: one inode under two names, and
// copies (A25).
func (x *checker) twice() {
	for _, p := range twins(x.Spool, x.mail) {
		r := about(p.lesser.Path(), "twice")
		r.part = "twice"
		if p.linked {
			r.wrong(duplicate, "It is the same file as %s under another name: it would be delivered twice. zmctl check --repair puts this name into quarantine/.", p.kept.Path())
		} else {
			r.wrong(contentCopy, "It has the content of %s and was copied: it would be delivered twice. Remove one of the two.", p.kept.Path())
			if p.sure {
				r.say("Both had the spool ID %s before they were copied, so zmctl check --repair puts this one into quarantine/.", p.lesser.was())
			}
		}
		x.tell(r)
	}
}

// twin is a message that stands at two places.
type twin struct {
	kept, lesser mail
	linked       bool // one inode
	sure         bool // both are the same message for certain
}

// twins pairs what is one message. A file that was only renamed while the directories
// were listed has one name now, and is none.
func twins(s *view.Spool, all []mail) []twin {
	var found []twin
	byInode := map[uint64][]mail{}
	for _, m := range all {
		byInode[m.Info.Ino] = append(byInode[m.Info.Ino], m)
	}
	linked := map[string]bool{} // second names, which are no copies besides
	for _, list := range byInode {
		list = slices.DeleteFunc(list, func(m mail) bool {
			now, err := s.Stat(m.Dir, m.Name)
			return err != nil || now.Info.Ino != m.Info.Ino || now.Info.Nlink < 2
		})
		rank(list)
		for i := 1; i < len(list); i++ {
			if list[i].Path() != list[0].Path() {
				found = append(found, twin{kept: list[0], lesser: list[i], linked: true, sure: true})
				linked[list[i].Path()] = true
			}
		}
	}
	bySize := map[int64][]mail{}
	for _, m := range all {
		if !linked[m.Path()] {
			bySize[m.Info.Size] = append(bySize[m.Info.Size], m)
		}
	}
	for _, list := range bySize {
		found = append(found, copies(s, list)...)
	}
	slices.SortFunc(found, func(a, b twin) int { return cmp.Compare(a.lesser.Path(), b.lesser.Path()) })
	return found
}

// rank puts first what has come farthest, of those the one with its right number.
func rank(list []mail) {
	slices.SortFunc(list, func(a, b mail) int {
		right := func(m mail) int {
			if m.misnumbered() {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(right(b), right(a)), cmp.Compare(a.Path(), b.Path()))
	})
}

// copies finds among files of one size those that were copied of one another. Two
// messages may well have the same content; a copy shows by its time to the
// nanosecond, or by a name that is not its number beside an original whose is.
func copies(s *view.Spool, list []mail) []twin {
	if len(list) < 2 || list[0].Info.Size == 0 {
		return nil // empty files have nothing in common
	}
	times, right := map[int64]int{}, 0
	for i := range list {
		times[list[i].Info.ModTime.UnixNano()]++
		if !list[i].misnumbered() {
			right++
		}
	}
	mixed := right > 0 && right < len(list)
	same := map[[sha256.Size]byte][]mail{}
	for _, m := range list {
		if !mixed && times[m.Info.ModTime.UnixNano()] < 2 {
			continue
		}
		if incompleteDraft(s, m) {
			continue
		}
		if sum, err := content(s, m.File); err == nil {
			same[sum] = append(same[sum], m)
		}
	}
	var found []twin
	for _, list := range same {
		rank(list)
		found = append(found, pairUp(list)...)
	}
	return found
}

// incompleteDraft reports whether a file in public/ is not the message that its writer
// began: a power loss left its name and its mode, and a part of its content or zeros. It
// is never delivered, so it is no copy of another.
func incompleteDraft(s *view.Spool, m mail) bool {
	if m.rank != rankPublic {
		return false
	}
	read, err := s.LoadFile(m.File, view.StateAccepted)
	return err != nil || read.Problem != ""
}

// pairUp finds the copies among files with the same content.
func pairUp(list []mail) []twin {
	var found []twin
	taken := make([]bool, len(list))
	for i := range list {
		for j := i + 1; j < len(list) && !taken[i]; j++ {
			a, b := &list[i], &list[j]
			sameTime := a.Info.ModTime.Equal(b.Info.ModTime)
			if taken[j] || a.Info.Ino == b.Info.Ino || !sameTime && a.misnumbered() == b.misnumbered() {
				continue
			}
			t := twin{kept: *a, lesser: *b}
			t.sure = sameTime && a.was() == b.was() && b.rank < rankQueue
			lost := j
			if !t.sure && a.misnumbered() && !b.misnumbered() {
				t.kept, t.lesser, lost = *b, *a, i
			}
			taken[lost] = true
			found = append(found, t)
		}
	}
	return found
}

// content is a sum over a file.
func content(s *view.Spool, f view.File) (sum [sha256.Size]byte, err error) {
	h, err := s.Open(f)
	if err != nil {
		return sum, err
	}
	defer h.Close()
	d := sha256.New()
	if _, err := io.Copy(d, h); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(d.Sum(nil)), nil
}
