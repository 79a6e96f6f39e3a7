// Package sqlite looks keys up in a SQLite file, by a query of the postmaster's.
//
// It owns nothing: the file is opened for reading, and the query may not write.
//
// Diagnostics: every error means that the answer is unknown now: the file is away, locked longer
// than the time limit, damaged, or the query is wrong.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the driver

	"zmailer/internal/lookup/settings"
)

// DB is a SQLite file that is asked. One goroutine at a time may use it.
type DB struct {
	c       settings.SQLite
	timeout time.Duration
	db      *sql.DB // nil: not open
	ino     uint64  // of the file that db reads
	dev     uint64
}

// Open prepares a file; it is opened when it is asked first.
func Open(c settings.SQLite, timeout time.Duration) *DB { return &DB{c: c, timeout: timeout} }

// Lookup runs the query for a key. The first columns of its rows are the value, with
// commas between; NULL is none.
func (d *DB) Lookup(ctx context.Context, key string) (string, bool, error) {
	text, ok, err := d.query(ctx, key)
	if err != nil {
		// What was damaged or replaced is opened anew for the next.
		return "", false, fmt.Errorf("%s: %w", d.c.Database, errors.Join(err, d.Close()))
	}
	return text, ok, nil
}

func (d *DB) query(ctx context.Context, key string) (string, bool, error) {
	if err := d.open(ctx); err != nil {
		return "", false, err
	}
	rows, err := d.db.QueryContext(ctx, d.c.Query, arguments(d.c.Query, key)...)
	if err != nil {
		return "", false, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", false, err
	}
	row := make([]any, len(columns))
	for i := range row {
		row[i] = new(any)
	}
	var value sql.NullString
	if len(row) == 0 {
		return "", false, errors.New("the query gives no columns: it must be a SELECT")
	}
	row[0] = &value
	var values []string
	for n := 0; rows.Next(); n++ {
		if n == d.c.Limit {
			return "", false, fmt.Errorf("more rows for one key than limit allows (%d)", d.c.Limit)
		}
		if err := rows.Scan(row...); err != nil {
			return "", false, err
		}
		if value.Valid {
			values = append(values, value.String)
		}
	}
	// Rows that were read before the file turned out damaged do not count.
	if err := rows.Err(); err != nil {
		return "", false, err
	}
	return strings.Join(values, ", "), len(values) > 0, nil
}

// open opens the file, also if another has its name now: SQLite would go on reading the
// one that it has.
func (d *DB) open(ctx context.Context) error {
	info, err := os.Stat(d.c.Database)
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		return perr.Err // SQLite would only say that it cannot open it
	}
	st := info.Sys().(*syscall.Stat_t)
	if d.db != nil && d.ino == st.Ino && d.dev == uint64(st.Dev) {
		return nil
	}
	if err := d.Close(); err != nil {
		return err
	}
	// The wait for locks is a little shorter than the time limit, so that it is reported.
	name := url.URL{Scheme: "file", OmitHost: true, Path: d.c.Database, RawQuery: fmt.Sprintf(
		"mode=ro&_pragma=busy_timeout(%d)&_pragma=query_only(1)", (d.timeout * 8 / 10).Milliseconds())}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return errors.Join(err, db.Close())
	}
	d.db, d.ino, d.dev = db, st.Ino, uint64(st.Dev)
	return nil
}

// Close closes the file until it is asked again.
func (d *DB) Close() error {
	if d.db == nil {
		return nil
	}
	err := d.db.Close()
	d.db = nil
	return err
}

// arguments gives a query the parts of the key that it names. They are bound, never
// written into its text.
func arguments(query, key string) []any {
	user, domain := settings.Parts(key)
	var args []any
	for name, text := range map[string]string{"key": key, "user": user, "domain": domain} {
		if regexp.MustCompile(`:` + name + `\b`).MatchString(query) {
			args = append(args, sql.Named(name, text))
		}
	}
	return args
}
