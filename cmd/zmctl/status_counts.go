package main

import (
	"fmt"
	"io"

	"zmailer/internal/wire/mailq"
)

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
