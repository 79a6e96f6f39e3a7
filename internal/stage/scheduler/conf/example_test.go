package conf_test

import (
	"fmt"
	"os"

	"zmailer/internal/stage/scheduler/conf"
)

// Every clause that matches gives its settings, up to the first with a command.
func Example() {
	file, err := conf.Parse("scheduler.conf", []byte(`
smtp/*.slow.example
	maxthr=4
smtp/*
	interval=5m expiry=3d
	command="smtp -c $channel"
`), os.LookupEnv)
	if err != nil {
		fmt.Println(err) // joins a *config.Error for each problem
		return
	}
	// The first clause has no command: the second one's settings count, too.
	for _, host := range []string{"mx.slow.example", "mx.example"} {
		s := file.Match("smtp", host)
		fmt.Println(host, s.Clause, s.Interval, s.Expiry, s.MaxThread)
	}
	fmt.Println("served:", file.Match("uucp", "neighbour") != nil)
	_, err = conf.Parse("scheduler.conf", []byte("*/*\n\tinterval=often\n"), os.LookupEnv)
	fmt.Println("errors:", len(conf.Errors(err)))
	// Output:
	// mx.slow.example smtp/* 5m0s 72h0m0s 4
	// mx.example smtp/* 5m0s 72h0m0s 1
	// served: false
	// errors: 1
}
