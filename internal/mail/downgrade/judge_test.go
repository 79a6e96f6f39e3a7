package downgrade

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/emersion/go-message"

	"zmailer/internal/run/assert"
)

var (
	messages = flag.Int("messages", 3000, "how many random messages are converted")
	seed     = flag.Uint64("seed", 1, "of the random messages")
)

// node is a part as a reader has it.
type node struct {
	kind    string
	broken  bool // the reader gave up here
	content string
	parts   []node
}

// differ returns what another node has that this one has not; "" if nothing. Where a reader
// could not decode the content of a part it is no judge of it.
func (n node) differ(other node) string {
	if n.kind != other.kind || len(n.parts) != len(other.parts) {
		return fmt.Sprintf("%s of %d parts, then %s of %d", n.kind, len(n.parts), other.kind, len(other.parts))
	}
	if n.broken && len(n.parts) == 0 {
		return ""
	}
	if n.broken != other.broken || n.content != other.content {
		return fmt.Sprintf("%s broken=%v %q, then broken=%v %q", n.kind, n.broken, n.content, other.broken, other.content)
	}
	for i, p := range n.parts {
		if d := p.differ(other.parts[i]); d != "" {
			return d
		}
	}
	return ""
}

// wire returns a stored message as a server gets it.
func wire(stored string) string {
	return strings.ReplaceAll(strings.ReplaceAll(stored, "\r\n", "\n"), "\n", "\r\n")
}

// readers read a message on the wire. None is ours.
var readers = map[string]func(wire string) node{
	"net/mail": func(wire string) node { return readMail(strings.NewReader(wire)) },
	"go-message": func(wire string) node {
		e, err := message.Read(strings.NewReader(wire))
		return readEntity(e, err, false)
	},
}

func readMail(r io.Reader) node {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return node{broken: true}
	}
	return readStandard(textproto.MIMEHeader(m.Header), m.Body, false)
}

// unreadable is a type that a reader does not understand: another reader may.
const unreadable = "unreadable"

// kindOf returns the type of a part, by RFC 2045 §5.2 and RFC 2046 §5.1.5 where none is
// named.
func kindOf(value, media string, err error, digest bool) string {
	switch {
	case value == "" && digest:
		return "message/rfc822"
	case value == "":
		return "text/plain"
	case err != nil:
		return unreadable
	}
	return media
}

func readStandard(h textproto.MIMEHeader, body io.Reader, digest bool) node {
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	n := node{kind: kindOf(h.Get("Content-Type"), media, err, digest)}
	if n.kind == unreadable {
		return n
	}
	switch {
	case strings.HasPrefix(n.kind, "multipart/"):
		r := multipart.NewReader(body, params["boundary"])
		for {
			p, err := r.NextRawPart()
			if err != nil {
				n.broken = err != io.EOF
				return n
			}
			n.parts = append(n.parts, readStandard(p.Header, p, n.kind == "multipart/digest"))
		}
	case n.kind == "message/rfc822":
		n.parts = []node{readMail(body)}
		return n
	}
	switch strings.ToLower(h.Get("Content-Transfer-Encoding")) {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}
	return n.read(body)
}

func (n node) read(r io.Reader) node {
	b, err := io.ReadAll(r)
	// Binary content is encoded with the line ends that it was stored with.
	n.content, n.broken = strings.ReplaceAll(string(b), "\r\n", "\n"), err != nil
	return n
}

func readEntity(e *message.Entity, err error, digest bool) node {
	if err != nil && (!message.IsUnknownCharset(err) && !message.IsUnknownEncoding(err) || e == nil) {
		return node{broken: true}
	}
	media, _, err := e.Header.ContentType()
	n := node{kind: kindOf(e.Header.Get("Content-Type"), media, err, digest)}
	if n.kind == unreadable {
		return n
	}
	if r := e.MultipartReader(); r != nil {
		for {
			p, err := r.NextPart()
			if err == io.EOF || p == nil && err != nil {
				n.broken = err != io.EOF
				return n
			}
			n.parts = append(n.parts, readEntity(p, err, n.kind == "multipart/digest"))
		}
	}
	if n.kind == "message/rfc822" {
		inner, err := message.Read(e.Body)
		n.parts = []node{readEntity(inner, err, false)}
		return n
	}
	return n.read(e.Body)
}

// python is the reader of Python's email package.
type python struct {
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

// startPython returns nil where there is no Python.
func startPython(t *testing.T) *python {
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Log("python3 is not there: its email package does not judge")
		return nil
	}
	p := &python{cmd: exec.Command(path, "testdata/judge.py")}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out := assert.Get(p.cmd.StdoutPipe())(t)
	p.out = bufio.NewReader(out)
	assert.Must(t, p.cmd.Start())
	t.Cleanup(func() {
		p.in.Close()
		if err := p.cmd.Wait(); err != nil {
			t.Error("judge.py:", err)
		}
	})
	return p
}

// judge returns "ok", or what is wrong.
func (p *python) judge(before, after string) (string, error) {
	line := base64.StdEncoding.EncodeToString([]byte(before)) + " " + base64.StdEncoding.EncodeToString([]byte(after)) + "\n"
	if _, err := io.WriteString(p.in, line); err != nil {
		return "", err
	}
	answer, err := p.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// compare returns what a reader finds different after the conversion.
func compare(p *python, before, after string) (string, error) {
	before, after = wire(before), wire(after)
	for name, read := range readers {
		if d := read(before).differ(read(after)); d != "" {
			return name + " reads " + d, nil
		}
	}
	if p == nil {
		return "", nil
	}
	answer, err := p.judge(before, after)
	if err != nil || answer == "ok" || strings.HasPrefix(answer, "skipped") {
		return "", err
	}
	return "python: " + answer, nil
}

// scans reports whether a Scan finds something in a message that it gets in pieces.
func scans(stored string, eight bool, piece int) bool {
	header, body := cut(stored)
	s := NewScan([]byte(header), eight)
	for b := []byte(body); len(b) > 0; {
		n := min(piece, len(b))
		s.Body(b[:n])
		b = b[n:]
	}
	return s.Found()
}

// A message that is broken in any way is sent with the content that it has, or it is
// refused. Readers that are not ours find the same parts with the same bytes before and
// after the conversion.
func TestDel5NoByteIsReplaced(t *testing.T) {
	t.Logf("-seed %d -messages %d", *seed, *messages)
	p := startPython(t)
	sent, legal, refusals := 0, 0, map[string]int{}
	for i := range uint64(*messages) {
		m := newMaker(*seed, i)
		in := m.message()
		if m.legal {
			legal++
		} else {
			in = m.uncommented(in) // a comment may have become content
		}
		eight := m.oneIn(6)
		if err := m.check(p, in, eight); err != nil {
			reason := (*Error)(nil)
			if !errors.As(err, &reason) {
				t.Fatalf("-seed %d, message %d, 8BITMIME %v: %v\n%q", *seed, i, eight, err, in)
			}
			refusals[reason.Code.String()+" "+reason.Reason]++
			if m.legal && !(m.signed && reason.Code == prohibited) {
				t.Fatalf("-seed %d, message %d: nothing is broken, but: %v\n%q", *seed, i, err, in)
			}
			continue
		}
		sent++
	}
	t.Logf("%d were not broken, %d sent, refused: %v", legal, sent, refusals)
	if sent < *messages/2 || legal < *messages/10 {
		t.Errorf("of %d messages %d were sent, %d were not broken", *messages, sent, legal)
	}
}

// The same as TestDel5NoByteIsReplaced, for seeds that the fuzzer finds worth a try.
func FuzzBroken(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, seed, n uint64) {
		m := newMaker(seed, n)
		in := m.message()
		if !m.legal {
			in = m.uncommented(in)
		}
		err := m.check(nil, in, m.oneIn(6))
		if reason := (*Error)(nil); err != nil && !errors.As(err, &reason) {
			t.Fatalf("%v\n%q", err, in)
		}
	})
}

// check converts a message and has it judged.
func (m *maker) check(p *python, in string, eight bool) error {
	if !scans(in, eight, 1+m.IntN(50)) {
		_, body := cut(in)
		if _, plan, err := convert(in, true); !eight && has8bit([]byte(body)) || err == nil && plan.Changed() {
			return errors.New("Scan has found nothing")
		}
		return nil // nothing is converted
	}
	out, plan, err := convert(in, eight)
	if err != nil {
		return err
	}
	if !plan.Changed() && !m.binary && !eight && m.legal {
		if _, body := cut(in); has8bit([]byte(body)) && !strings.Contains(body, "X-Head: gr") {
			return errors.New("8-bit content is not changed")
		}
	}
	if !eight {
		if err := m.sevenBit(in, out, plan); err != nil {
			return fmt.Errorf("%w\n%q", err, out)
		}
	}
	diff, err := compare(p, m.uncommented(in), m.uncommented(out))
	if err == nil && diff != "" {
		return fmt.Errorf("%s\n%q", diff, out)
	}
	return err
}

// sevenBit checks the lines that a server without 8BITMIME gets.
func (m *maker) sevenBit(in, out string, plan *Plan) error {
	for line := range strings.Lines(out) {
		// Header fields go as they came, whatever they have.
		known := strings.HasPrefix(line, "X-Head") || strings.HasPrefix(line, "Subject: ") || strings.Contains(line, "boundary=\"gr") ||
			!m.legal && (line[0] == ' ' || line[0] == '\t') && strings.Contains(in, "\n"+line)
		if has8bit([]byte(line)) && !known {
			return fmt.Errorf("a line is not 7-bit: %q", line)
		}
		// What is broken or signed is not touched for long lines alone.
		if len(line) > maxLine+1 && plan.Changed() && (m.legal && !m.signed || !strings.Contains(in, line)) {
			return fmt.Errorf("a line has %d bytes: %q", len(line), line)
		}
	}
	return nil
}

// The messages that Python's own tests read, which are broken in the ways that were met.
func TestDel5PythonsMessages(t *testing.T) {
	p := startPython(t)
	if p == nil {
		t.Skip("python3 is not there")
	}
	dir, err := exec.Command(p.cmd.Path, "-c", "import test.test_email as t, os; print(os.path.join(os.path.dirname(t.__file__), 'data'))").Output()
	if err != nil {
		t.Skip("Python's tests are not there (Debian: libpython3-testsuite)")
	}
	files, err := os.ReadDir(strings.TrimSpace(string(dir)))
	if err != nil {
		t.Skip(err)
	}
	read, sent := 0, 0
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "msg_") {
			continue
		}
		b := assert.Get(os.ReadFile(strings.TrimSpace(string(dir)) + "/" + f.Name()))(t)
		read++
		for _, in := range eightBit(string(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")))) {
			out, _, err := convert(in, false)
			if refused := (*Error)(nil); errors.As(err, &refused) {
				t.Logf("%s: %s", f.Name(), refused.Reason)
				continue
			}
			assert.Must(t, err)
			sent++
			diff, err := compare(p, in, out)
			if err != nil || diff != "" {
				t.Errorf("%s: %v %s\n%s", f.Name(), err, diff, out)
			}
		}
	}
	if read < 40 || sent < read {
		t.Errorf("%d messages were read, %d of their variants were sent", read, sent)
	}
}

// eightBit makes 8-bit messages of one: with one of its lowercase letters replaced in each
// line of the body that has a blank, so that it is text; and of the lines at the end only.
func eightBit(stored string) []string {
	header, body := cut(stored)
	all, last := strings.Builder{}, body
	for line := range strings.Lines(body) {
		if changed := strings.Replace(line, "e", "\xc3\xa9", 1); !strings.Contains(line, ":") && strings.Contains(line, " ") && !strings.HasPrefix(line, "--") {
			last = strings.Replace(body, line, changed, 1)
			line = changed
		}
		all.WriteString(line)
	}
	return []string{stored, header + all.String(), header + last}
}
