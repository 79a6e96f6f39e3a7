package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// countsPatience is how long status waits for the scheduler's counts before it counts
// the files itself.
const countsPatience = 5 * time.Second

// schedulerCounts asks the running scheduler for its counts. It returns nil if the scheduler
// does not answer, or has so few messages that counting their files takes no longer.
func schedulerCounts(ctx context.Context, dir string) *mailq.StatusInfo {
	a, err := callScheduler(ctx, dir)
	if err != nil {
		return nil
	}
	defer a.close()
	if a.conn.SetDeadline(time.Now().Add(countsPatience)) != nil {
		return nil
	}
	var st mailq.StatusInfo
	_, err = a.Ask(mailq.Request{Kind: mailq.JSONStatus}, func(line string) error {
		return json.Unmarshal([]byte(line), &st)
	})
	if err != nil || st.Messages <= readLimit {
		return nil
	}
	return &st
}

// counted is a directory of the queue by the scheduler's counts.
func counted(top string, c *mailq.StatusInfo) directory {
	return directory{Name: top, Files: c.Messages, States: []group{{State: stateQueued, Files: c.Messages, OldestSeconds: c.OldestSeconds}}}
}

// isQueue reports whether the scheduler has counts of a directory.
func isQueue(top string) bool { return top == postoffice.Queue || top == postoffice.Transport }

// printCounts prints the scheduler's counts that are not numbers of files.
func printCounts(w io.Writer, c *mailq.StatusInfo) {
	fmt.Fprintf(w, "\nqueue and transport by the scheduler's counts: %d recipients for %d hosts", c.Recipients, c.Threads)
	if c.Refused > 0 {
		fmt.Fprintf(w, "; %d specifications that cannot be used are not among them", c.Refused)
	}
	if !c.Scanned {
		fmt.Fprint(w, "; it still reads what lay there when it started")
	}
	fmt.Fprintln(w, "\nzmctl check counts the files, zmctl queue --counts the recipients by state")
}
