package smtpserver

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// libraryLog gives go-smtp's complaints to our log.
type libraryLog struct{ log *slog.Logger }

// Printf implements smtp.Logger. go-smtp has caught the panics that it reports; the
// connection is over, the server goes on.
func (l libraryLog) Printf(format string, v ...any) {
	level := slog.LevelWarn
	if strings.HasPrefix(format, "panic ") {
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, "smtp-trouble", "text", fmt.Sprintf(format, v...))
}

// Println implements smtp.Logger.
func (l libraryLog) Println(v ...any) { l.log.Warn("smtp-trouble", "text", fmt.Sprint(v...)) }
