package table

import "context"

type slowKey struct{}

// WithSlow gives a context in which whoever begins something that may take long calls
// f first: a lookup outside of this process, a file of a user.
func WithSlow(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, slowKey{}, f)
}

// Slow tells the one who gave the context that something begins that may take long.
func Slow(ctx context.Context) {
	if f, ok := ctx.Value(slowKey{}).(func()); ok {
		f()
	}
}
