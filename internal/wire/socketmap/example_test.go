package socketmap_test

import (
	"bufio"
	"fmt"
	"net"

	"zmailer/internal/wire/socketmap"
)

func Example() {
	client, server := net.Pipe()
	go socketmap.Serve(server, server, func(name, key string) socketmap.Reply {
		return socketmap.Reply{Status: socketmap.OK, Text: key + " in " + name}
	})
	reply, err := socketmap.Ask(bufio.NewReader(client), client, "users", "smith")
	fmt.Println(reply.Status, reply.Text, err)
	// Output: OK smith in users <nil>
}
