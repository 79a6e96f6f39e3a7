package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain writes text so that Markdown leaves it as it is.
func plain(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strings.ContainsRune("\\`*_{}[]#|&<>~", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// prose makes Markdown of a help text: its indented lines are examples.
func prose(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "   ")
		switch {
		case indented && !code:
			b.WriteString("\n```\n")
		case !indented && code:
			b.WriteString("```\n\n")
		}
		code = indented
		switch {
		case code:
			b.WriteString(strings.TrimPrefix(line, "    ") + "\n")
		default:
			b.WriteString(plain(refer(line)) + "\n")
		}
	}
	if code {
		b.WriteString("```\n")
	}
	return strings.TrimSpace(b.String()) + "\n\n"
}

// docFile is a document's file in a text, with or without its directory.
var docFile = regexp.MustCompile(`\bdocs/([A-Za-z.-]+)\.md\b`)

// refer puts pages in the place of documents.
func refer(text string) string {
	return docFile.ReplaceAllStringFunc(text, func(s string) string {
		e := place(docFile.FindStringSubmatch(s)[1])
		return fmt.Sprintf("%s(%d)", e.name, e.section)
	})
}

// about returns a document's title as it stands behind the dash of NAME.
func (d document) about() string {
	title, _, _ := strings.Cut(strings.TrimPrefix(d.text, "# "), "\n")
	title = strings.NewReplacer("`", "", "*", "", " - ", ": ").Replace(title)
	first, size := utf8.DecodeRuneInString(title)
	next, _ := utf8.DecodeRuneInString(title[size:])
	if unicode.IsUpper(first) && !unicode.IsUpper(next) && !strings.HasPrefix(title, "Postfix") && !strings.HasPrefix(title, "Exim") {
		title = string(unicode.ToLower(first)) + title[size:]
	}
	return title
}

// page makes a document's manual page.
func (d document) page() page {
	_, text, _ := strings.Cut(d.text, "\n")
	body := adapt(strings.TrimLeft(text, "\n"))
	if !strings.HasPrefix(body, "## ") {
		body = "# DESCRIPTION\n\n" + body
	}
	for _, file := range d.files {
		body += defaultFile(file)
	}
	return page{name: d.entry.name, also: d.also, section: d.section, about: d.about(), body: body}
}

// adapt brings a document into the Markdown that makes good pages: without comments, with
// references to pages, and lists in place of tables, for which a terminal is too narrow.
func adapt(text string) string {
	var b, chunk strings.Builder
	var table []string
	flush := func() {
		b.WriteString(links(chunk.String()))
		chunk.Reset()
		if len(table) > 0 {
			b.WriteString(tableText(table) + "\n")
			table = nil
		}
	}
	fence, comment := "", false
	for line := range strings.Lines(text) {
		switch {
		case comment:
			comment = !strings.Contains(line, "-->")
		case fence != "":
			b.WriteString(line)
			if strings.HasPrefix(strings.TrimSpace(line), fence) {
				fence = ""
				b.WriteString("\n")
			}
		case strings.HasPrefix(line, "<!--"):
			comment = !strings.Contains(line, "-->")
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			flush()
			fence = "```"
			b.WriteString("\n" + line)
		case strings.HasPrefix(line, "|"):
			if len(table) == 0 {
				flush()
			}
			table = append(table, strings.TrimRight(line, "\n"))
		case strings.HasPrefix(line, "    "):
			flush()
			b.WriteString(line)
		default:
			if len(table) > 0 {
				flush()
			}
			chunk.WriteString(line)
		}
	}
	flush()
	return b.String()
}

// link is [text](target).
var link = regexp.MustCompile(`!?\[([^\]]*)\]\(([^)\s]*)\)`)

// links puts pages in the place of links to documents; other files of the repository are
// named, places in a page are not.
func links(text string) string {
	return link.ReplaceAllStringFunc(text, func(s string) string {
		m := link.FindStringSubmatch(s)
		label, target := m[1], m[2]
		file, _, _ := strings.Cut(target, "#")
		switch {
		case strings.Contains(target, "://"):
			if label == target {
				return "<" + target + ">"
			}
			return s
		case strings.HasPrefix(s, "!"):
			return ""
		case file == "":
			return label
		case file == "HACKING.md":
			return "docs/HACKING.md of the source"
		case strings.HasSuffix(file, ".md") && !strings.Contains(file, "/"):
			name := strings.TrimSuffix(file, ".md")
			e := place(name)
			ref := fmt.Sprintf("**%s**(%d)", plain(e.name), e.section)
			if label == file || label == name || label == "docs/"+file {
				return ref
			}
			return label + " (" + ref + ")"
		default:
			return label
		}
	})
}

// defaultFile shows a file as zmctl init writes it.
func defaultFile(name string) string {
	return fmt.Sprintf("\n## THE FILE %s AS IT IS MADE\n\n```\n%s```\n", strings.ToUpper(name), defaultText(name))
}
