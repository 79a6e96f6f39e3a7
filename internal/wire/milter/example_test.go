package milter_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	gomilter "github.com/emersion/go-milter"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/wire/milter"
)

// tagger is a filter that puts a field into every message.
type tagger struct{ gomilter.NoOpMilter }

func (tagger) Body(m *gomilter.Modifier) (gomilter.Response, error) {
	return gomilter.RespAccept, m.AddHeader("X-Checked", "yes")
}

// A server shows a filter one message and gets the changes that it wants.
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	filter := gomilter.Server{NewMilter: func() gomilter.Milter { return tagger{} }, Actions: gomilter.OptAddHeader}
	go filter.Serve(l)
	defer filter.Close()

	s, err := milter.Open(context.Background(), milter.Config{Network: "tcp", Address: l.Addr().String()})
	if err != nil {
		fmt.Println(err) // trouble with the filter: the message is refused for now
		return
	}
	defer s.Close()
	s.Connect("client.example", netip.MustParseAddrPort("192.0.2.1:4711"), nil)
	s.Helo("client.example", nil)
	s.Mail("a@client.example", nil, nil)
	answer, err := s.Rcpt("b@example.net", nil, nil)
	fmt.Println("recipient accepted:", answer.Action == milter.Continue, err)
	answer, changes, err := s.Content(envelope.Fields([]byte("Subject: x\n")), strings.NewReader("hi\n"), io.Discard, nil)
	fmt.Println("message accepted:", answer.Action == milter.Accept, err)
	for _, c := range changes {
		fmt.Println(c.Kind == milter.AddField, c.Name, strings.TrimSpace(c.Value))
	}
	// Output:
	// recipient accepted: true <nil>
	// message accepted: true <nil>
	// true X-Checked yes
}
