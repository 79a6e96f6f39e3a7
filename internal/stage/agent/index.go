package agent

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// indexes are the indexes of the specifications that were read last. A message to very
// many hosts is a job for each of them: with an index the agent reads only the lines about
// the recipients of the job, under the same lock, and not the whole file each time.
type indexes struct {
	mu   sync.Mutex
	list []*fileIndex // the last used at the end
}

// fileIndex is the index of one specification, used only while its file is locked.
type fileIndex struct {
	dev, ino uint64
	closing  string          // the z line, if there is no index
	places   atomic.Int64    // of the index
	mu       sync.Mutex      // where locks of files do nothing
	index    *workspec.Index // nil: the file cannot have one
}

const (
	leastIndexed = 8 << 10 // bytes: a smaller file is read as soon
	mostIndexes  = 4
)

func (o *fileIndex) is(file *postoffice.Spec) bool {
	return o.dev == file.Info.Dev && o.ino == file.Info.Ino
}

// of returns the index of an open file, nil if there is none.
func (l *indexes) of(file *postoffice.Spec) *fileIndex {
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

// make makes the index of a file that was read. If it cannot have one that is remembered,
// too, and not tried again by each job.
func (l *indexes) make(file *postoffice.Spec, raw []byte, s *workspec.Spec) {
	closing := ""
	if s.ZOffset > 0 {
		line, _, _ := bytes.Cut(raw[s.ZOffset:], []byte{'\n'})
		closing = string(line)
	}
	if o := l.of(file); o != nil && o.index == nil && o.closing == closing {
		return
	}
	o := &fileIndex{dev: file.Info.Dev, ino: file.Info.Ino, index: workspec.NewIndex(raw, s)}
	if o.index == nil {
		o.closing = closing
	} else {
		o.places.Store(int64(o.index.Places()))
	}
	l.drop(file)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, o)
	l.fit()
}

// drop forgets the index of a file.
func (l *indexes) drop(file *postoffice.Spec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(o *fileIndex) bool { return o.is(file) })
}

// fit drops the first ones if there are too many or they have too many places.
func (l *indexes) fit() {
	places := int64(0)
	for _, o := range l.list {
		places += o.places.Load()
	}
	for len(l.list) > 1 && (len(l.list) > mostIndexes || places > workspec.MaxPlaces) {
		places -= l.list[0].places.Load()
		l.list = slices.Delete(l.list, 0, 1)
	}
}

// readSome reads only the recipients of the job's host and the lines appended about them.
// Not ok: the whole file has to be read; valid: its index may still be used.
func (d *reading) readSome() (ok, valid bool) {
	if d.Job.Host == "" {
		return false, false
	}
	o := d.agent.indexes.of(d.file)
	if o == nil || o.index == nil {
		return false, false
	}
	o.mu.Lock()
	ok, valid = d.readBy(o.index)
	o.places.Store(int64(o.index.Places()))
	o.mu.Unlock()
	if !valid {
		d.agent.indexes.drop(d.file)
	}
	return ok, valid
}

// mostTries is how often a partial read is repeated because the file has grown. Each agent
// that appends has to wait for the lock then.
const mostTries = 10

// readBy is readSome with an index.
func (d *reading) readBy(o *workspec.Index) (ok, valid bool) {
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
		e := o.Partial(d.Job.Host)
		if e == nil {
			return false, true
		}
		*d.buffer, err = e.Fill(b, d.file.ReadAt)
		if err != nil {
			return false, false
		}
		// A lock that is released in doubt writes a line first: a reader of the tag must see
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

// grown reports whether the file's size differs from the part that was read.
func (d *reading) grown() (bool, error) {
	size, err := d.file.Size()
	return size != d.end, err
}
