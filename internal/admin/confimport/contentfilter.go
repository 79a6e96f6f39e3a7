package confimport

import (
	"fmt"
	"slices"
	"strings"
)

// contentFilter returns the filter that mail passes, from main.cf or, if that has none, from the
// service on port 25, and the name of its transport.
func (c *converter) contentFilter() (filter, transport string) {
	filter = c.p.get("content_filter")
	for _, s := range c.p.services {
		if filter == "" && s.command == "smtpd" && s.name == "smtp" {
			filter = c.p.get("content_filter", s)
		}
	}
	transport, _, _ = strings.Cut(filter, ":")
	return filter, transport
}

// isWayBack reports whether a service takes the mail that the content filter gives back: it has
// the option content_filter without a value.
func (c *converter) isWayBack(s service) bool {
	filter, _ := c.contentFilter()
	return filter != "" && s.command == "smtpd" && c.p.get("content_filter", s) == "" &&
		slices.ContainsFunc(s.options, func(o setting) bool { return o.name == "content_filter" })
}

// convertContentFilter converts content_filter, the transport that it names and the service that
// it gives mail back to.
func convertContentFilter(c *converter) {
	filter, transport := c.contentFilter()
	if filter == "" {
		c.notNeeded("content_filter", "none")
		c.notNeeded("receive_override_options", "of a content filter")
		return
	}
	back := slices.ContainsFunc(c.p.services, c.isWayBack)
	target, why := c.target(filter, "")
	if target != "" { // its options are time limits and the like; it has a clause of its own
		why = ""
	}
	if strings.Count(target, ":") < 2 { // an IPv4 address needs no brackets, which a clause would have to quote
		target = strings.NewReplacer("[", "", "]", "").Replace(target)
	}
	_, host, _ := strings.Cut(target, "!")
	switch {
	case why != "":
		c.byHand("content_filter", "content-filters.md", "%s; a filter takes mail by SMTP or LMTP, or is a milter (docs/filters.md)", why)
	case host == "":
		c.byHand("content_filter", "content-filters.md", "%s names no host", filter)
	case !back:
		c.byHand("content_filter", "content-filters.md", "CONTENTFILTER=%s, and REINJECTLISTEN: no service of master.cf with the option content_filter= takes the mail back", target)
	default:
		c.b.set("CONTENTFILTER", target, "content_filter")
		c.converted("content_filter", "content-filters.md", "CONTENTFILTER=%s", target)
		for _, s := range c.p.services {
			if s.name != transport || s.kind != "unix" {
				continue
			}
			if s.processes != "-" && s.processes != "0" {
				c.clause["# Remote hosts:"] = fmt.Sprintf("# The content filter, which serves so many connections at once.\n%s\n\tmaxthr=%s\n\n# Remote hosts:", strings.Replace(clausePattern(target), "!", "/", 1), s.processes)
			}
			c.service(s, Converted, "content-filters.md", "CONTENTFILTER; its number of processes is maxthr= of a clause of scheduler.conf")
		}
	}
	c.converted("receive_override_options", "content-filters.md", "aliases come behind the filter, and rules are applied once")
	for _, name := range []string{transport + "_destination_recipient_limit", transport + "_destination_concurrency_limit"} {
		c.notNeeded(name, "the filter's address may have a clause of scheduler.conf")
	}
}

// clausePattern quotes what a clause of scheduler.conf takes for a pattern.
func clausePattern(s string) string {
	return strings.NewReplacer("[", `\[`, "]", `\]`, "*", `\*`, "?", `\?`).Replace(s)
}
