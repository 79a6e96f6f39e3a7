package agent

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// message is the message file of a job.
type message struct {
	Message durable.File // queue/NAME, for ReadAt
	Size    int64        // bytes

	body  int64   // where Body begins
	whole []byte  // the file, if it is small
	small *[]byte // whose buffer that is
	idMu  sync.Mutex
	known bool // id is
	id    postoffice.SpoolID
}

// small is up to which size a message file is read into memory, with one read(2). Bytes.
const small = 32 << 10

var smallBuffers = sync.Pool{New: func() any { b := make([]byte, small); return &b }}

// open opens queue/NAME for the specification transport/NAME and finds where the body begins.
func (m *message) open(spec *postoffice.Spec, name string, body int64) error {
	m.small = smallBuffers.Get().(*[]byte)
	f, info, whole, err := spec.OpenWhole(*m.small)
	if err != nil {
		return err
	}
	m.Message, m.body = f, body
	if m.whole = whole; whole != nil {
		m.Size = int64(len(whole))
	} else {
		m.Size, m.known, m.id = info.Size, true, postoffice.IDOf(info)
		if err := postoffice.CheckSize(f, m.Size); err != nil {
			return fmt.Errorf("open message %s: %w", name, err)
		}
	}
	if m.body < 2 || m.body > m.Size {
		return fmt.Errorf("open message %s: body at byte %d of %d", name, m.body, m.Size)
	}
	var before [2]byte
	if whole != nil {
		copy(before[:], whole[m.body-2:])
	} else if _, err := f.ReadAt(before[:], m.body-2); err != nil {
		return fmt.Errorf("open message %s: %w", name, err)
	}
	if before == [2]byte{'\n', '\n'} {
		m.body--
	}
	return nil
}

func (m *message) close() error {
	if m.small != nil {
		smallBuffers.Put(m.small)
		m.small, m.whole = nil, nil
	}
	if m.Message == nil {
		return nil
	}
	return m.Message.Close()
}

// Body reads the body from its offset, with the empty line before it if the message
// has one; each call from the start. It reads the file as it is asked to and holds
// nothing. A message that is all header has no empty line.
func (m *message) Body() io.Reader {
	if m.whole != nil {
		return bytes.NewReader(m.whole[m.body:])
	}
	return io.NewSectionReader(m.Message, m.body, m.BodySize())
}

// BodySize returns how many bytes Body reads.
func (m *message) BodySize() int64 { return m.Size - m.body }

// ID returns the message's spool ID. It takes a system call, and is needed only for log
// lines, which are rare.
func (m *message) ID() postoffice.SpoolID {
	m.idMu.Lock()
	defer m.idMu.Unlock()
	if !m.known && m.Message != nil {
		if info, err := m.Message.Stat(); err == nil {
			m.known, m.id = true, postoffice.IDOf(info)
		}
	}
	return m.id
}
