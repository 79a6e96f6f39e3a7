// Package mysql looks keys up in a MySQL or MariaDB database, by a query of the postmaster's.
//
// It owns nothing but its connection, which is made when it is needed.
//
// Diagnostics: every error means that the answer is unknown now: no server can be reached,
// the query is wrong, a key has more rows than the limit. A key has no value only if the
// server ran the whole query.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"zmailer/internal/lookup/settings"
)

// DB is a database that is asked. One goroutine at a time may use it.
type DB struct {
	c       settings.SQL
	configs []*mysql.Config
	db      *sql.DB   // nil: not connected
	query   *sql.Stmt // prepared there
}

// Open prepares a database; it is connected to when it is asked first.
func Open(c settings.SQL, timeout time.Duration) (*DB, error) {
	d := &DB{c: c}
	for _, s := range c.Servers {
		config := mysql.NewConfig()
		config.Net, config.Addr = s.Network, s.Address
		config.User, config.Passwd, config.DBName = c.User, c.Password, c.Database
		config.Timeout, config.ReadTimeout, config.WriteTimeout = timeout, timeout, timeout
		config.Logger = log.New(io.Discard, "", 0) // its errors are returned, too
		if c.TLS && s.Network == "tcp" {
			tls, err := settings.ClientTLS(c.CAFile)
			if err != nil {
				return nil, err
			}
			tls.ServerName, _, _ = net.SplitHostPort(s.Address)
			config.TLS = tls
		}
		d.configs = append(d.configs, config)
	}
	return d, nil
}

// Lookup runs the query for a key. The first columns of its rows are the value, with
// commas between; NULL is none.
func (d *DB) Lookup(ctx context.Context, key string) (string, bool, error) {
	fresh := d.db == nil
	text, ok, err := d.ask(ctx, key)
	if err != nil && !fresh && ctx.Err() == nil && !answered(err) {
		// The server may have ended the idle connection long ago.
		text, ok, err = d.ask(ctx, key)
	}
	return text, ok, err
}

var (
	errTooMany = errors.New("more rows for one key than limit allows")
	errNoQuery = errors.New("the query gives no columns: it must be a SELECT")
)

// answered reports whether the server is there and has answered.
func answered(err error) bool {
	merr := (*mysql.MySQLError)(nil)
	return errors.Is(err, errTooMany) || errors.Is(err, errNoQuery) || errors.As(err, &merr)
}

func (d *DB) ask(ctx context.Context, key string) (text string, ok bool, err error) {
	// What is left of an answer that is not wanted is not read: its connection is closed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if err != nil {
			cancel()
			_ = d.Close() // the error that matters is err
		}
	}()
	if err := d.connect(ctx); err != nil {
		return "", false, err
	}
	var args []any
	for _, arg := range d.c.Args(key) {
		args = append(args, arg)
	}
	rows, err := d.query.QueryContext(ctx, args...)
	if err != nil {
		return "", false, err
	}
	defer func() {
		if err != nil {
			cancel()
		}
		rows.Close()
	}()
	columns, err := rows.Columns()
	if err == nil && len(columns) == 0 {
		err = errNoQuery
	}
	if err != nil {
		return "", false, err
	}
	var value sql.NullString
	row := make([]any, len(columns))
	for i := range row {
		row[i] = new(sql.RawBytes)
	}
	row[0] = &value
	var values []string
	for n := 0; rows.Next(); n++ {
		if n == d.c.Limit {
			return "", false, fmt.Errorf("%w (%d)", errTooMany, d.c.Limit)
		}
		if err := rows.Scan(row...); err != nil {
			return "", false, err
		}
		if value.Valid {
			values = append(values, value.String)
		}
	}
	if err := rows.Err(); err != nil {
		return "", false, err
	}
	return strings.Join(values, ", "), len(values) > 0, nil
}

// connect connects to the first server that answers, and prepares the query.
func (d *DB) connect(ctx context.Context) error {
	if d.db != nil {
		return nil
	}
	var errs []error
	for _, config := range d.configs {
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return err
		}
		db := sql.OpenDB(connector)
		db.SetMaxOpenConns(1)
		query, err := db.PrepareContext(ctx, d.c.Query)
		if err == nil {
			d.db, d.query = db, query
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", config.Addr, err))
		db.Close()
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// Close ends the connection.
func (d *DB) Close() error {
	if d.db == nil {
		return nil
	}
	err := errors.Join(d.query.Close(), d.db.Close())
	d.db, d.query = nil, nil
	return err
}
