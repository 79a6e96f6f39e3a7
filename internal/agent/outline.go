package agent

import (
	"slices"
	"sync"
	"sync/atomic"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// outlines are those of the specifications that were read last. A message to very many
// hosts is a job for each of them: with an outline the agent reads the lines about its
// own recipients, under the same lock, and not the whole file again each time.
type outlines struct {
	mu   sync.Mutex
	list []*outlined // the last used at the end
}

// outlined is a specification with an outline, which is used by who has its file locked.
type outlined struct {
	dev, ino uint64
	places   atomic.Int64 // of the outline
	mu       sync.Mutex   // where locks of files do nothing
	outline  *workspec.Outline
}

const (
	leastOutlined = 8 << 10 // bytes: a smaller file is read as soon
	mostOutlines  = 4
)

func (o *outlined) is(file *postoffice.Spec) bool {
	return o.dev == file.Info.Dev && o.ino == file.Info.Ino
}

// of is the outline of an open file, nil if there is none.
func (l *outlines) of(file *postoffice.Spec) *outlined {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.list {
		if o.is(file) {
			l.list = append(slices.Delete(l.list, i, i+1), o)
			l.fit()
			return o
		}
	}
	return nil
}

// keep has the outline of a file that was read; nil: it has none any more.
func (l *outlines) keep(file *postoffice.Spec, outline *workspec.Outline) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(o *outlined) bool { return o.is(file) })
	if outline == nil {
		return
	}
	o := &outlined{dev: file.Info.Dev, ino: file.Info.Ino, outline: outline}
	o.places.Store(int64(outline.Places()))
	l.list = append(l.list, o)
	l.fit()
}

// fit lets go of the first ones, where there are too many or they have too many places.
func (l *outlines) fit() {
	places := int64(0)
	for _, o := range l.list {
		places += o.places.Load()
	}
	for len(l.list) > 1 && (len(l.list) > mostOutlines || places > workspec.MaxPlaces) {
		places -= l.list[0].places.Load()
		l.list = slices.Delete(l.list, 0, 1)
	}
}

// readSome reads the recipients of the job's host alone, and what was appended about them.
// false: the whole file is to be read.
func (d *Delivery) readSome() bool {
	if d.Job.Host == "" {
		return false
	}
	o := d.agent.outlines.of(d.file)
	if o == nil {
		return false
	}
	o.mu.Lock()
	ok, valid := d.readBy(o.outline)
	o.places.Store(int64(o.outline.Places()))
	o.mu.Unlock()
	if !valid {
		d.agent.outlines.keep(d.file, nil)
	}
	return ok
}

// readBy is readSome with an outline; valid: that may still be used.
func (d *Delivery) readBy(o *workspec.Outline) (ok, valid bool) {
	// Lines are appended and nothing is cut off: where the last one that is known ended
	// another one ends.
	b, err := d.file.ReadEnd(*d.buffer, o.End()-1)
	if err != nil || len(b) == 0 || b[0] != '\n' {
		return false, false
	}
	*d.buffer = b
	if !o.Extend(b[1:]) {
		return false, false
	}
	e := o.Excerpt(d.Job.Host)
	if e == nil {
		return false, true
	}
	*d.buffer, err = e.Fill(b, d.file.ReadAt)
	if err != nil {
		return false, false
	}
	d.Spec, ok = e.Parse()
	d.text = e
	return ok, ok
}
