package confimport

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// table is a reference to a table of Postfix's, such as hash:/etc/postfix/virtual.
type table struct{ kind, name string }

// parseTable takes a reference apart; one without a kind is a path in a list.
func (c *converter) parseTable(text string) table {
	text = strings.TrimSpace(text)
	text = strings.TrimPrefix(text, "proxy:")
	kind, name, ok := strings.Cut(text, ":")
	if !ok || strings.Contains(kind, "/") {
		return table{"", text}
	}
	return table{kind, name}
}

// isText reports whether a table is made from a text file of keys and values.
func (t table) isText() bool {
	return slices.Contains([]string{"hash", "btree", "lmdb", "cdb", "dbm", "sdbm", "texthash"}, t.kind)
}

func (t table) String() string {
	if t.kind == "" {
		return t.name
	}
	return t.kind + ":" + t.name
}

// entry is a line of a text table.
type entry struct{ key, value string }

// entries reads a text table.
func (c *converter) entries(t table) ([]entry, error) {
	if t.kind == "inline" {
		return inlineEntries(t.name)
	}
	lines, err := readLines(c.path(t.name))
	if err != nil {
		return nil, err
	}
	var list []entry
	for _, l := range lines {
		key, value := l.text, ""
		if i := strings.IndexAny(l.text, " \t"); i >= 0 {
			key, value = l.text[:i], strings.TrimSpace(l.text[i:])
		}
		list = append(list, entry{key, value})
	}
	return list, nil
}

// inlineEntries reads {key=value, {key = value}}.
func inlineEntries(text string) ([]entry, error) {
	inner, opens := strings.CutPrefix(strings.TrimSpace(text), "{")
	inner, closes := strings.CutSuffix(inner, "}")
	if !opens || !closes {
		return nil, fmt.Errorf("inline: without braces: %s", text)
	}
	var out []entry
	for _, each := range list(inner) {
		each = strings.TrimSuffix(strings.TrimPrefix(each, "{"), "}")
		key, value, ok := strings.Cut(each, "=")
		if !ok {
			return nil, fmt.Errorf("inline: %q has no =", each)
		}
		out = append(out, entry{strings.TrimSpace(key), strings.TrimSpace(value)})
	}
	return out, nil
}

// path returns where a file is: those of the copied configuration are in its directory. The text
// that is made of it is for as few users as it is.
func (c *converter) path(name string) string {
	path := c.located(name)
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o004 == 0 {
		c.b.closed = true
	}
	return path
}

func (c *converter) located(name string) string {
	if rest, ok := strings.CutPrefix(name, "/etc/postfix/"); ok {
		name = rest
	}
	if !filepath.IsAbs(name) {
		return filepath.Join(c.p.dir, name)
	}
	if under := filepath.Join(c.p.dir, filepath.Base(name)); !exists(name) && exists(under) {
		return under
	}
	return name
}

// database makes the settings of a source from Postfix's for the same server. It returns the
// source, or why there is none.
func (c *converter) database(t table, column string) (source, trouble string) {
	lines, err := readLines(c.path(t.name))
	if err != nil {
		return "", err.Error()
	}
	values := map[string]string{}
	for _, l := range lines {
		if name, value, ok := strings.Cut(l.text, "="); ok {
			values[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	base := strings.TrimSuffix(filepath.Base(t.name), filepath.Ext(t.name))
	name := base + "." + t.kind
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", name, value)
		}
	}
	var left []string
	for _, name := range []string{"result_format", "domain", "leaf_result_attribute", "special_result_attribute", "terminal_result_attribute"} {
		if v := values[name]; v != "" && !(name == "result_format" && v == "%s") {
			left = append(left, name+" = "+v)
		}
	}
	switch t.kind {
	case "pgsql", "mysql", "sqlite":
		query := values["query"]
		if query == "" {
			where := values["where_field"]
			if where == "" || values["table"] == "" || values["select_field"] == "" {
				return "", t.name + " has no query"
			}
			query = fmt.Sprintf("SELECT %s FROM %s WHERE %s = '%%s' %s", values["select_field"], values["table"], where, values["additional_conditions"])
		}
		bound, err := bindQuery(query)
		if err != nil {
			return "", fmt.Sprintf("%s: %v", t.name, err)
		}
		if t.kind == "sqlite" {
			line("database", values["dbpath"])
		} else {
			hosts := strings.Join(list(values["hosts"]), " ")
			if hosts == "" {
				hosts = map[string]string{"pgsql": "unix:/run/postgresql", "mysql": "unix:/run/mysqld/mysqld.sock"}[t.kind]
			}
			line("hosts", strings.ReplaceAll(hosts, "localhost", "127.0.0.1"))
			line("user", values["user"])
			line("password", values["password"])
			line("dbname", values["dbname"])
		}
		line("limit", values["expansion_limit"])
		line("query", bound)
	case "ldap":
		host := values["server_host"]
		if host == "" {
			host = "localhost"
		}
		var urls []string
		for _, h := range list(host) {
			if !strings.Contains(h, "://") {
				h = "ldap://" + h
				if port := values["server_port"]; port != "" {
					h += ":" + port
				}
			}
			urls = append(urls, h)
		}
		line("url", strings.Join(urls, " "))
		if values["start_tls"] == "yes" {
			line("start_tls", "yes")
		}
		line("ca_file", values["tls_ca_cert_file"])
		if values["bind"] != "no" && values["bind"] != "none" {
			line("bind_dn", values["bind_dn"])
			line("password", values["bind_pw"])
		}
		line("base", values["search_base"])
		if scope := values["scope"]; scope != "" && scope != "sub" {
			line("scope", scope)
		}
		filter := values["query_filter"]
		if filter == "" {
			filter = "(mailacceptinggeneralid=%s)"
		}
		line("filter", filter)
		attribute := values["result_attribute"]
		if attribute == "" {
			attribute = "maildrop"
		}
		line("attributes", strings.Join(list(attribute), " "))
		if strings.Contains(values["search_base"], "%") {
			left = append(left, "search_base = "+values["search_base"])
		}
	}
	if len(left) > 0 {
		return "", fmt.Sprintf("%s has %s, for which %s has no counterpart: write it into the query", t.name, strings.Join(left, ", "), t.kind+":")
	}
	if column == "" || !c.written[name] {
		c.written[name] = true
		c.b.add(name, "# From "+t.String()+"\n"+b.String())
		c.b.secret(name)
	}
	return t.kind + ":" + name, ""
}

// places finds the places of the key in a query of Postfix's: %s, %u, %d and parts of the
// domain, between quotes with perhaps text beside them, or without quotes.
var places = regexp.MustCompile(`'([^'%]*)%([a-zA-Z0-9%])([^'%]*)'|%([a-zA-Z0-9%])`)

// bindQuery writes :key, :user and :domain in place of '%s', '%u' and '%d'.
func bindQuery(query string) (string, error) {
	var bad error
	out := places.ReplaceAllStringFunc(query, func(place string) string {
		m := places.FindStringSubmatch(place)
		before, letter, after := m[1], m[2]+m[4], m[3]
		if letter == "%" {
			return strings.ReplaceAll(place, "%%", "%")
		}
		name := map[string]string{"s": ":key", "u": ":user", "d": ":domain", "S": ":key", "U": ":user", "D": ":domain"}[letter]
		if name == "" {
			bad = fmt.Errorf("%%%s in the query has no counterpart", letter)
			return place
		}
		if before == "" && after == "" {
			return name
		}
		parts := []string{name}
		if before != "" {
			parts = append([]string{"'" + before + "'"}, parts...)
		}
		if after != "" {
			parts = append(parts, "'"+after+"'")
		}
		return "CONCAT(" + strings.Join(parts, ", ") + ")"
	})
	return out, bad
}
