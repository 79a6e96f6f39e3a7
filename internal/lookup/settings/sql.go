package settings

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// SQL is what a pgsql: or mysql: source asks.
type SQL struct {
	Servers  []Server // tried in this order
	User     string
	Password string
	Database string
	Query    string   // with a placeholder of the database for each of Bound
	Bound    []string // which part of the key each placeholder is: key, user, domain
	TLS      bool     // with the server's certificate verified; not on Unix sockets
	CAFile   string   // who signs the servers' certificates; "": whom the system trusts
	Limit    int      // rows that one key may have
}

// Server is where a database server listens.
type Server struct {
	Network string // tcp, unix
	Address string // HOST:PORT, or the path of the socket
}

// ReadSQL reads the settings of a pgsql: or mysql: source; scheme says which.
func ReadSQL(open Open, scheme, path string) (SQL, error) {
	f, err := read(open, path, "hosts", "user", "password", "password_file", "dbname", "query", "tls", "ca_file", "limit")
	if err != nil {
		return SQL{}, err
	}
	c := SQL{
		User:     f.need("user", "the name to log in with"),
		Password: f.secret("password", "password_file"),
		Database: f.need("dbname", "the name of the database"),
		TLS:      f.word("tls", "no", "yes") == "yes",
		CAFile:   f.abs(f.get("ca_file")),
		Limit:    f.number("limit", 100),
	}
	port := map[string]string{"pgsql": "5432", "mysql": "3306"}[scheme]
	for _, text := range strings.Fields(f.need("hosts", "HOST, HOST:PORT or unix:PATH; more are tried in their order")) {
		server, err := parseServer(text, port)
		if err != nil {
			f.bad(f.values["hosts"].line, fmt.Sprintf("hosts: %v", err))
		}
		c.Servers = append(c.Servers, server)
	}
	if query := f.need("query", "SELECT value FROM aliases WHERE name = :key"); query != "" {
		if c.Query, c.Bound, err = bind(query, scheme); err != nil {
			f.bad(f.values["query"].line, err.Error())
		}
	}
	return c, f.err()
}

// parseServer reads HOST, HOST:PORT, inet:HOST:PORT, unix:PATH or /PATH, as Postfix's
// pgsql_table(5) and mysql_table(5) have them.
func parseServer(text, port string) (Server, error) {
	address := strings.TrimPrefix(text, "unix:")
	if address != text || strings.HasPrefix(text, "/") {
		if !path.IsAbs(address) {
			return Server{}, fmt.Errorf("%s: the path of a socket begins with /", text)
		}
		return Server{"unix", address}, nil
	}
	address = strings.TrimPrefix(text, "inet:")
	host, given, err := net.SplitHostPort(address)
	if err != nil {
		host, given = strings.Trim(address, "[]"), port
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return Server{}, fmt.Errorf("%s: want HOST, HOST:PORT or unix:PATH", text)
		}
	}
	if host == "" || given == "" {
		return Server{}, fmt.Errorf("%s: want HOST, HOST:PORT or unix:PATH", text)
	}
	return Server{"tcp", net.JoinHostPort(host, given)}, nil
}

// secret returns the value of a setting or the first line of the file that another names.
func (f *file) secret(direct, byFile string) string {
	text := f.get(direct)
	name := f.abs(f.get(byFile))
	if name == "" {
		return text
	}
	content, err := readAll(f.open, name)
	if err != nil {
		f.bad(f.values[byFile].line, fmt.Sprintf("%s cannot be read: %v", byFile, err))
	}
	if text != "" {
		f.bad(f.values[byFile].line, fmt.Sprintf("%s and %s are both set", direct, byFile))
	}
	return strings.TrimRight(string(content), "\r\n")
}

// bind replaces :key, :user and :domain in a query by the placeholders of its database, and
// returns which part of the key each of them stands for. The parts are sent beside the
// query, never within it.
func bind(query, scheme string) (text string, bound []string, err error) {
	if !utf8.ValidString(query) {
		return "", nil, fmt.Errorf("query is not in UTF-8")
	}
	var b strings.Builder
	for i := 0; i < len(query); {
		n := quoted(query[i:], scheme)
		if n < 0 {
			return "", nil, fmt.Errorf("query: no end of the quotation or comment that begins with %.20s", query[i:])
		}
		if n > 0 {
			if part := named(query[i : i+n]); part != "" {
				return "", nil, fmt.Errorf("query has %s between quotes; write it without them: it is sent beside the query", part)
			}
			b.WriteString(query[i : i+n])
			i += n
			continue
		}
		name := ""
		for _, part := range []string{"key", "user", "domain"} {
			if rest, ok := strings.CutPrefix(query[i:], ":"+part); ok && (rest == "" || !isWord(rest[0])) {
				name = part
			}
		}
		switch {
		case strings.HasPrefix(query[i:], "::"): // a cast of PostgreSQL
			b.WriteString("::")
			i += 2
		case name != "" && scheme == "pgsql":
			at := slices.Index(bound, name)
			if at < 0 {
				at = len(bound)
				bound = append(bound, name)
			}
			fmt.Fprintf(&b, "$%d", at+1)
			i += 1 + len(name)
		case name != "":
			bound = append(bound, name)
			b.WriteByte('?')
			i += 1 + len(name)
		case query[i] == '?' && scheme == "mysql":
			return "", nil, fmt.Errorf("query has a ?; write :key, :user or :domain")
		case query[i] == '%' && i+1 < len(query) && strings.IndexByte("sud", query[i+1]) >= 0 && (i+2 == len(query) || !isWord(query[i+2])):
			return "", nil, fmt.Errorf("query has %s; write :key, :user or :domain", query[i:i+2])
		default:
			b.WriteByte(query[i])
			i++
		}
	}
	if len(bound) == 0 {
		return "", nil, fmt.Errorf("query has none of :key, :user and :domain, so that it answers the same for every key; write them without quotes")
	}
	return b.String(), bound, nil
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}

// named returns the part of the key that stands in a piece of quoted text; "" if there is none.
func named(text string) string {
	for _, part := range []string{":key", ":user", ":domain", "%s", "%u", "%d"} {
		if strings.Trim(text, "'\"`") == part {
			return part
		}
	}
	return ""
}

// quoted returns how many bytes of text are a quotation or a comment that text begins with:
// 0 if it begins with none, -1 if it has no end.
func quoted(text, scheme string) int {
	end := func(skip int, mark string) int {
		if i := strings.Index(text[skip:], mark); i >= 0 {
			return skip + i + len(mark)
		}
		return -1
	}
	switch {
	case strings.HasPrefix(text, "/*"):
		return end(2, "*/")
	case strings.HasPrefix(text, "--"):
		return len(text) // the lines of a setting are one
	case text[0] == '$' && scheme == "pgsql": // $$ or $tag$
		if i := strings.IndexByte(text[1:], '$'); i >= 0 && strings.Trim(text[1:1+i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
			return end(i+2, text[:i+2])
		}
		return 0
	case text[0] == '\'' || text[0] == '"' || text[0] == '`' && scheme == "mysql":
		for i := 1; i < len(text); i++ {
			if text[i] == '\\' && scheme == "mysql" && text[0] != '`' {
				i++
			} else if text[i] == text[0] {
				return i + 1 // a doubled quote begins the next quotation
			}
		}
		return -1
	}
	return 0
}

// Args returns the parts of a key in the order of the placeholders.
func (c SQL) Args(key string) []string {
	user, domain := Parts(key)
	args := make([]string, len(c.Bound))
	for i, name := range c.Bound {
		args[i] = map[string]string{"key": key, "user": user, "domain": domain}[name]
	}
	return args
}
