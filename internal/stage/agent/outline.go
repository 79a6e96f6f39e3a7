package agent

import (
	"bytes"
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
	closing  string            // the z line, where there is no outline
	places   atomic.Int64      // of the outline
	mu       sync.Mutex        // where locks of files do nothing
	outline  *workspec.Outline // nil: the file cannot have one
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

// make makes the outline of a file that was read. Where it cannot have one that is
// remembered too, and not tried again by each job.
func (l *outlines) make(file *postoffice.Spec, raw []byte, s *workspec.Spec) {
	closing := ""
	if s.ZOffset > 0 {
		line, _, _ := bytes.Cut(raw[s.ZOffset:], []byte{'\n'})
		closing = string(line)
	}
	if o := l.of(file); o != nil && o.outline == nil && o.closing == closing {
		return
	}
	o := &outlined{dev: file.Info.Dev, ino: file.Info.Ino, outline: workspec.NewOutline(raw, s)}
	if o.outline == nil {
		o.closing = closing
	} else {
		o.places.Store(int64(o.outline.Places()))
	}
	l.drop(file)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, o)
	l.fit()
}

// drop forgets the outline of a file.
func (l *outlines) drop(file *postoffice.Spec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(o *outlined) bool { return o.is(file) })
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
// Not ok: the whole file is to be read; valid: its outline may still be used.
func (d *Delivery) readSome() (ok, valid bool) {
	if d.Job.Host == "" {
		return false, false
	}
	o := d.agent.outlines.of(d.file)
	if o == nil || o.outline == nil {
		return false, false
	}
	o.mu.Lock()
	ok, valid = d.readBy(o.outline)
	o.places.Store(int64(o.outline.Places()))
	o.mu.Unlock()
	if !valid {
		d.agent.outlines.drop(d.file)
	}
	return ok, valid
}

// mostTries is how often an excerpt is read while others append. Each of them has then to
// wait for the lock.
const mostTries = 10

// readBy is readSome with an outline.
func (d *Delivery) readBy(o *workspec.Outline) (ok, valid bool) {
	for range mostTries {
		from := o.Last()
		b, err := d.file.ReadEnd(*d.buffer, from)
		if err != nil {
			return false, false
		}
		*d.buffer, d.end = b, from+int64(len(b))
		if !o.Follow(b) {
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
		// A lock that is given back in doubt is a line first: who sees the tag must see
		// the line, which is read before it here.
		if grown, err := d.grown(); err != nil {
			return false, false
		} else if grown {
			continue
		}
		d.Spec, ok = e.Parse()
		d.text, d.some = e, ok
		return ok, ok
	}
	return false, true
}

// grown tells whether the file has another size than what was read of it.
func (d *Delivery) grown() (bool, error) {
	size, err := d.file.Size()
	return size != d.end, err
}
