package settings

import "strings"

// SQLite is what a sqlite: source asks.
type SQLite struct {
	Database string // path
	Query    string // with :key, :user, :domain; its first column is the value
	Limit    int    // rows that one key may have
}

// ReadSQLite reads the settings of a sqlite: source.
func ReadSQLite(open Open, path string) (SQLite, error) {
	f, err := read(open, path, "database", "query", "limit")
	if err != nil {
		return SQLite{}, err
	}
	c := SQLite{
		Database: f.abs(f.need("database", "the path of the SQLite file")),
		Query:    f.need("query", "SELECT value FROM aliases WHERE name = :key"),
		Limit:    f.number("limit", 100),
	}
	if c.Query != "" && !strings.Contains(c.Query, ":key") && !strings.Contains(c.Query, ":user") && !strings.Contains(c.Query, ":domain") {
		f.bad(f.values["query"].line, "query has none of :key, :user and :domain, so that it answers the same for every key; write them without quotes")
	}
	return c, f.err()
}
