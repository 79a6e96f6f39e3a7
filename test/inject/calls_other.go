//go:build !amd64

package inject

// legacy: there are none.
func legacy() map[int]shape { return nil }
