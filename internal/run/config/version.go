package config

// Version is the version of all programs. The linker of make install sets it to VERSION of the
// Makefile, which is the same for a release.
var Version = "0.1.0"
