package smtpclient_test

import (
	"fmt"
	"net"
	"strings"

	"zmailer/internal/wire/smtpclient"
	testpeer "zmailer/test/peer"
)

func Example() {
	server := &testpeer.Sink{}
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	nc, err := net.Dial("tcp", server.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	c := smtpclient.New(nc, smtpclient.Config{Hostname: "client.example"})
	defer c.Quit()
	if err := c.Hello(); err != nil {
		fmt.Println(err)
		return
	}
	results, err := c.Send(&smtpclient.Message{
		From:       "a@client.example",
		Recipients: []smtpclient.Recipient{{Address: "b@mx.example"}},
		Header:     []byte("Subject: x\n"),
		Body:       strings.NewReader("text\n"),
	})
	fmt.Println(results[0].Outcome, err)
	// Output: delivered <nil>
}
