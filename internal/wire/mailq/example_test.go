package mailq_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"

	"zmailer/internal/wire/mailq"
)

// A client asks a scheduler for a thread. The server here answers one request.
func Example() {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		server.Write(mailq.Greeting(mailq.Challenge("a random text")))
		line, err := bufio.NewReaderSize(server, mailq.MaxLine).ReadBytes('\n')
		if err != nil {
			return
		}
		request, err := mailq.ParseRequest(bytes.TrimSpace(line))
		fmt.Println("asked for", request.Channel, request.Host, err)
		b := []byte(mailq.Follows + "\n")
		b = mailq.AppendLine(b, ".one line")
		server.Write(append(b, mailq.End+"\n"...))
	}()
	c, err := mailq.NewClient(client)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Ask(mailq.Request{Kind: mailq.Thread, Channel: "smtp", Host: "mx.example"}, func(line string) error {
		fmt.Println("answer:", line)
		return nil
	})
	fmt.Println(err)
	// Output:
	// asked for smtp mx.example <nil>
	// answer: .one line
	// <nil>
}
