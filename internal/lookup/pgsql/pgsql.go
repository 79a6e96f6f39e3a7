// Package pgsql looks keys up in a PostgreSQL database, by a query of the postmaster's.
//
// It owns nothing but its connection, which is made when it is needed.
//
// Diagnostics: every error means that the answer is unknown now: no server can be reached,
// the query is wrong, a key has more rows than the limit. A key has no value only if the
// server ran the whole query, or if the key is text that no database in its encoding can hold.
package pgsql

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"zmailer/internal/lookup/settings"
)

// DB is a database that is asked. One goroutine at a time may use it.
type DB struct {
	c       settings.SQL
	configs []*pgconn.Config
	conn    *pgconn.PgConn // nil: not connected
}

// Open prepares a database; it is connected to when it is asked first.
func Open(c settings.SQL, timeout time.Duration) (*DB, error) {
	d := &DB{c: c}
	for _, s := range c.Servers {
		// Parsed from nothing, and nothing of the environment is kept.
		config, err := pgconn.ParseConfig("passfile=/dev/null servicefile=/dev/null sslmode=disable")
		if err != nil {
			return nil, err
		}
		config.Host, config.Port = address(s)
		config.User, config.Password, config.Database = c.User, c.Password, c.Database
		config.TLSConfig, config.Fallbacks, config.ConnectTimeout = nil, nil, timeout
		config.RuntimeParams = map[string]string{"application_name": "zmailer", "client_encoding": "UTF8"}
		if c.TLS && s.Network == "tcp" {
			if config.TLSConfig, err = serverTLS(c, config.Host); err != nil {
				return nil, err
			}
		}
		d.configs = append(d.configs, config)
	}
	return d, nil
}

func serverTLS(c settings.SQL, host string) (*tls.Config, error) {
	config, err := settings.ClientTLS(c.CAFile)
	if err == nil {
		config.ServerName = host
	}
	return config, err
}

// address returns host and port as the library has them: the host of a socket is its
// directory, and the socket's name there is .s.PGSQL.PORT.
func address(s settings.Server) (string, uint16) {
	host, port := s.Address, "5432"
	if s.Network == "tcp" {
		host, port, _ = net.SplitHostPort(s.Address)
	} else if number, ok := strings.CutPrefix(path.Base(s.Address), ".s.PGSQL."); ok {
		host, port = path.Dir(s.Address), number
	}
	n, _ := strconv.ParseUint(port, 10, 16)
	return host, uint16(n)
}

// Lookup runs the query for a key. The first columns of its rows are the value, with
// commas between; NULL is none.
func (d *DB) Lookup(ctx context.Context, key string) (string, bool, error) {
	if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return "", false, nil // the server would refuse it as text
	}
	fresh := d.conn == nil
	text, ok, err := d.query(ctx, key)
	if err != nil && !fresh && ctx.Err() == nil && !answered(err) {
		// The server may have ended the idle connection long ago.
		text, ok, err = d.query(ctx, key)
	}
	return text, ok, err
}

// answered reports whether the server has answered with an error that leaves its connection usable.
func answered(err error) bool {
	perr := (*pgconn.PgError)(nil)
	return errors.Is(err, errTooMany) || errors.As(err, &perr) && perr.SeverityUnlocalized == "ERROR"
}

var errTooMany = errors.New("more rows for one key than limit allows")

// untranslatable is the SQLSTATE for text that the encoding of the database cannot hold.
const untranslatable = "22P05"

func (d *DB) query(ctx context.Context, key string) (string, bool, error) {
	if err := d.connect(ctx); err != nil {
		return "", false, err
	}
	var args [][]byte
	for _, arg := range d.c.Args(key) {
		args = append(args, []byte(arg))
	}
	// No types are given, so that the server chooses those of the columns.
	rows := d.conn.ExecParams(ctx, d.c.Query, args, nil, nil, nil)
	var values []string
	for n := 0; rows.NextRow(); n++ {
		if n == d.c.Limit {
			d.drop() // the other rows are not read
			return "", false, fmt.Errorf("%w (%d)", errTooMany, d.c.Limit)
		}
		if row := rows.Values(); len(row) > 0 && row[0] != nil {
			values = append(values, string(row[0]))
		}
	}
	columns := len(rows.FieldDescriptions())
	_, err := rows.Close()
	if perr := (*pgconn.PgError)(nil); errors.As(err, &perr) && perr.Code == untranslatable {
		return "", false, nil
	}
	if err != nil {
		if !answered(err) {
			d.drop()
		}
		return "", false, err
	}
	if columns == 0 {
		return "", false, errors.New("the query gives no columns: it must be a SELECT")
	}
	return strings.Join(values, ", "), len(values) > 0, nil
}

// connect connects to the first server that answers.
func (d *DB) connect(ctx context.Context) error {
	if d.conn != nil && !d.conn.IsClosed() {
		return nil
	}
	d.conn = nil
	var errs []error
	for _, config := range d.configs {
		conn, err := pgconn.ConnectConfig(ctx, config)
		if err == nil {
			d.conn = conn
			return nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// drop ends the connection without asking the server.
func (d *DB) drop() {
	if d.conn != nil {
		_ = d.conn.Conn().Close()
	}
	d.conn = nil
}

// Close ends the connection.
func (d *DB) Close() error {
	if d.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := d.conn.Close(ctx)
	d.conn = nil
	return err
}
