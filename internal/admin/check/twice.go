package check

import (
	"cmp"
	"crypto/sha256"
	"io"
	"slices"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
)

// Ranks order the stages of a message: of two files of one message the one in the later
// stage is kept.
const (
	RankPublic = iota
	RankRouter
	RankAside
	RankQueue
)

// Mail is a message file, but not a copy for the postmaster.
type Mail struct {
	view.File
	Number postoffice.Name
	Rank   int
}

// Was returns the spool ID that the file had under the number in its name.
func (m *Mail) Was() postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Number.Ino, MTime: m.Info.ModTime.UnixNano()}
}

func (m *Mail) misnumbered() bool { return !m.Number.Fits(m.Info.Ino) }

// duplicates finds messages that would be delivered twice: one inode under two names, and
// copies (A25).
type duplicates struct {
	*pass
	mail []Mail
}

func (x *duplicates) note(f view.File, n postoffice.Name, rank int) {
	x.mail = append(x.mail, Mail{File: f, Number: n, Rank: rank})
}

func (x *duplicates) report() {
	for _, p := range Pairs(x.Spool, x.mail) {
		r := about(p.Lesser.Path(), "twice")
		r.part = "twice"
		if p.Linked {
			r.wrong(Duplicate, "It is the same file as %s under another name and would be delivered twice. zmctl check --repair puts this name into quarantine/.", p.Kept.Path())
		} else {
			r.wrong(ContentCopy, "It is a copy with the content of %s and would be delivered twice. Remove one of the two.", p.Kept.Path())
			if p.Sure {
				r.say("Both had the spool ID %s before they were copied, so zmctl check --repair puts this one into quarantine/.", p.Lesser.Was())
			}
		}
		x.add(r)
	}
}

// Pair is two files of one message.
type Pair struct {
	Kept, Lesser Mail
	Linked       bool // one inode
	Sure         bool // both are the same message for certain
}

// Pairs finds files that are one message. A file that was only renamed while the directories
// were listed has one name now, and is left out.
func Pairs(s *view.Spool, all []Mail) []Pair {
	var found []Pair
	byInode := map[uint64][]Mail{}
	for _, m := range all {
		byInode[m.Info.Ino] = append(byInode[m.Info.Ino], m)
	}
	linked := map[string]bool{} // second names, which are no copies besides
	for _, list := range byInode {
		list = slices.DeleteFunc(list, func(m Mail) bool {
			now, err := s.Stat(m.Dir, m.Name)
			return err != nil || now.Info.Ino != m.Info.Ino || now.Info.Nlink < 2
		})
		rank(list)
		for i := 1; i < len(list); i++ {
			if list[i].Path() != list[0].Path() {
				found = append(found, Pair{Kept: list[0], Lesser: list[i], Linked: true, Sure: true})
				linked[list[i].Path()] = true
			}
		}
	}
	bySize := map[int64][]Mail{}
	for _, m := range all {
		if !linked[m.Path()] {
			bySize[m.Info.Size] = append(bySize[m.Info.Size], m)
		}
	}
	for _, list := range bySize {
		found = append(found, copies(s, list)...)
	}
	slices.SortFunc(found, func(a, b Pair) int { return cmp.Compare(a.Lesser.Path(), b.Lesser.Path()) })
	return found
}

// rank sorts the latest stage first, and within a stage the file with its right number.
func rank(list []Mail) {
	slices.SortFunc(list, func(a, b Mail) int {
		right := func(m Mail) int {
			if m.misnumbered() {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Rank, a.Rank), cmp.Compare(right(b), right(a)), cmp.Compare(a.Path(), b.Path()))
	})
}

// copies finds copies among files of one size. Two messages may have the same content; a
// copy has the same time to the nanosecond, or a name that is not its inode number beside an
// original with the right one.
func copies(s *view.Spool, list []Mail) []Pair {
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
	same := map[[sha256.Size]byte][]Mail{}
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
	var found []Pair
	for _, list := range same {
		rank(list)
		found = append(found, pairUp(list)...)
	}
	return found
}

// incompleteDraft reports whether a file in public/ is not the message that its writer
// began: a power loss left its name and its mode, and a part of its content or zeros. It
// is never delivered, so it is no copy of another.
func incompleteDraft(s *view.Spool, m Mail) bool {
	if m.Rank != RankPublic {
		return false
	}
	read, err := s.LoadFile(m.File, view.StateAccepted)
	return err != nil || read.Problem != ""
}

// pairUp finds the copies among files with the same content.
func pairUp(list []Mail) []Pair {
	var found []Pair
	taken := make([]bool, len(list))
	for i := range list {
		for j := i + 1; j < len(list) && !taken[i]; j++ {
			a, b := &list[i], &list[j]
			sameTime := a.Info.ModTime.Equal(b.Info.ModTime)
			if taken[j] || a.Info.Ino == b.Info.Ino || !sameTime && a.misnumbered() == b.misnumbered() {
				continue
			}
			t := Pair{Kept: *a, Lesser: *b}
			t.Sure = sameTime && a.Was() == b.Was() && b.Rank < RankQueue
			lost := j
			if !t.Sure && a.misnumbered() && !b.misnumbered() {
				t.Kept, t.Lesser, lost = *b, *a, i
			}
			taken[lost] = true
			found = append(found, t)
		}
	}
	return found
}

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
