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
	text := fmt.Sprintf(format, v...)
	level := slog.LevelWarn
	switch {
	case clientLeftBeforeChunk(text):
		level = slog.LevelDebug
	case strings.HasPrefix(text, "panic "):
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, "smtp-trouble", "text", text)
}

// Println implements smtp.Logger.
func (l libraryLog) Println(v ...any) { l.log.Warn("smtp-trouble", "text", fmt.Sprint(v...)) }

// clientLeftBeforeChunk tells a panic of go-smtp 0.25.1 that any client can bring
// about and that means nothing: BDAT starts a goroutine that asks the connection for
// its session, which is nil when the client has gone by then. No session of ours has
// seen the message.
func clientLeftBeforeChunk(text string) bool {
	return strings.HasPrefix(text, "panic ") && strings.Contains(text, "nil pointer dereference") &&
		strings.Contains(text, ".handleBdat.func1") && !strings.Contains(text, ".Data(")
}
