package main

import (
	"fmt"
	"strings"

	"zmailer/internal/run/config"
)

// setting is one or several variables that stand under one comment of the default file.
type setting struct {
	comment string
	lines   []string // NAME=value
}

// settingsPage is zmailer.conf(5), made of the file that zmctl init writes.
func settingsPage() page {
	head, settings := settingsOf(string(config.Default("zmailer.conf")))
	var b strings.Builder
	fmt.Fprintf(&b, "# DESCRIPTION\n\n%s", prose(head))
	b.WriteString("All programs read this file; **--config** or ZCONFIG names it. Without one the defaults that are shown here hold. " +
		"Tables stand beside it: **zmailer-routing**(5), **scheduler.conf**(5) and others. **zmctl check-config** reports errors. " +
		"Daemons read it when they start.\n\n# SETTINGS\n\n")
	for _, s := range settings {
		for i, line := range s.lines {
			name, value, _ := strings.Cut(line, "=")
			fmt.Fprintf(&b, "**%s**=%s\n", plain(name), plain(value))
			if i+1 < len(s.lines) {
				b.WriteString(": see the next\n\n")
			}
		}
		text := strings.ReplaceAll(strings.TrimSpace(s.comment), "\n", " ")
		fmt.Fprintf(&b, ": %s\n\n", plain(refer(text)))
	}
	b.WriteString("# FILES\n\n/etc/zmailer/zmailer.conf\n: where the package puts it\n\n# SEE ALSO\n\n**zmailer**(7),\n**zmctl**(8),\n**zmctl-init**(8),\n**zmctl-check-config**(8)\n")
	return page{name: "zmailer.conf", section: 5, about: "settings of the mail system", body: b.String()}
}

// settingsOf takes the default file apart: its head, and a comment with the lines below it.
func settingsOf(text string) (head string, list []setting) {
	var comment strings.Builder
	first := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		name, _, isSetting := strings.Cut(strings.TrimPrefix(line, "#"), "=")
		switch {
		case isSetting && name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "":
			one := strings.TrimPrefix(line, "#")
			if comment.Len() == 0 && len(list) > 0 {
				last := &list[len(list)-1]
				last.lines = append(last.lines, one)
				continue
			}
			list = append(list, setting{comment.String(), []string{one}})
			comment.Reset()
		case strings.HasPrefix(line, "#"):
			comment.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ") + "\n")
		case line == "" && first && comment.Len() > 0:
			// The file's own title is the page's.
			_, head, _ = strings.Cut(comment.String(), "\n")
			comment.Reset()
			first = false
		}
	}
	return strings.TrimSpace(head), list
}
