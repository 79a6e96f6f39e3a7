package passwd

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/xdg-go/scram"
	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// Costs of the hashes that are made here, and what a line may ask for at most: a file that
// somebody wrote must not make one login take the machine's memory.
const (
	argonMemory, argonTime, argonThreads = 19 << 10, 2, 1 // kilobytes; OWASP's choice
	argonSalt, argonKey                  = 16, 32
	mostMemory, mostTime, mostThreads    = 1 << 20, 64, 64
	mostBcrypt                           = 16

	scramIterations = 100_000
	scramSalt       = 16
	mostIterations  = 10_000_000
)

// argon is a hash of argon2id (RFC 9106) in the form of the PHC strings.
type argon struct {
	memory, time uint32
	threads      uint8
	salt, key    []byte
}

func (a argon) verify(password string) error {
	got := argon2.IDKey([]byte(password), a.salt, a.time, a.memory, a.threads, uint32(len(a.key)))
	if subtle.ConstantTimeCompare(got, a.key) != 1 {
		return ErrMismatch
	}
	return nil
}

func (a argon) dummy() hash {
	a.key = make([]byte, len(a.key))
	return a
}

func (a argon) String() string {
	return fmt.Sprintf("%sv=%d$m=%d,t=%d,p=%d$%s$%s", argonPrefix, argon2.Version, a.memory, a.time, a.threads,
		base64.RawStdEncoding.EncodeToString(a.salt), base64.RawStdEncoding.EncodeToString(a.key))
}

func parseArgon(text string) (argon, error) {
	bad := errors.New("its hash is not $argon2id$v=19$m=..,t=..,p=..$salt$key")
	f := strings.Split(strings.TrimPrefix(text, argonPrefix), "$")
	if len(f) != 4 || f[0] != "v="+strconv.Itoa(argon2.Version) {
		return argon{}, bad
	}
	var a argon
	for _, p := range strings.Split(f[1], ",") {
		key, value, _ := strings.Cut(p, "=")
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return argon{}, bad
		}
		switch key {
		case "m":
			a.memory = uint32(min(n, mostMemory+1))
		case "t":
			a.time = uint32(min(n, mostTime+1))
		case "p":
			a.threads = uint8(min(n, mostThreads+1))
		default:
			return argon{}, bad
		}
	}
	if a.memory > mostMemory || a.time > mostTime || a.threads > mostThreads {
		return argon{}, fmt.Errorf("its hash costs more than m=%d,t=%d,p=%d", mostMemory, mostTime, mostThreads)
	}
	var err error
	if a.salt, err = base64.RawStdEncoding.DecodeString(f[2]); err != nil || len(a.salt) < 8 {
		return argon{}, bad
	}
	if a.key, err = base64.RawStdEncoding.DecodeString(f[3]); err != nil || len(a.key) < 16 || len(a.key) > 64 {
		return argon{}, bad
	}
	if a.memory == 0 || a.time == 0 || a.threads == 0 {
		return argon{}, bad
	}
	return a, nil
}

// NewHash makes the argon2id hash of a password.
func NewHash(password string) string {
	a := argon{memory: argonMemory, time: argonTime, threads: argonThreads, salt: random(argonSalt)}
	a.key = argon2.IDKey([]byte(password), a.salt, a.time, a.memory, a.threads, argonKey)
	return a.String()
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// modular is a hash of bcrypt in its modular form, "$2b$12$...".
type modular string

func (m modular) verify(password string) error {
	if bcrypt.CompareHashAndPassword([]byte(m), []byte(password)) != nil {
		return ErrMismatch
	}
	return nil
}

// dummy has another digest behind the same cost and salt.
func (m modular) dummy() hash {
	return m[:bcryptSalt] + modular(strings.Repeat(".", len(m)-bcryptSalt))
}

// bcryptSalt is where the salt ends: "$2b$12$" and 22 characters.
const bcryptSalt = 29

func parseBcrypt(text string) (modular, error) {
	cost, err := bcrypt.Cost([]byte(text))
	if err != nil || len(text) != 60 {
		return "", errors.New("its hash is not $2b$cost$ and 53 characters")
	}
	if cost > mostBcrypt {
		return "", fmt.Errorf("its hash has the cost %d, at most %d is taken", cost, mostBcrypt)
	}
	return modular(text), nil
}

// SCRAM is what a server keeps of a password for SCRAM-SHA-256 (RFC 5802 §3).
type SCRAM struct {
	Iterations                 int
	Salt, StoredKey, ServerKey []byte
}

// verify computes the keys of a password as a client would.
func (s SCRAM) verify(password string) error {
	made, err := scramKeys(password, s.Salt, s.Iterations)
	if err != nil || subtle.ConstantTimeCompare(made.StoredKey, s.StoredKey) != 1 {
		return ErrMismatch
	}
	return nil
}

func (s SCRAM) dummy() hash {
	s.StoredKey = make([]byte, len(s.StoredKey))
	return s
}

func (s SCRAM) String() string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s%d:%s$%s:%s", scramPrefix, s.Iterations, b64(s.Salt), b64(s.StoredKey), b64(s.ServerKey))
}

// parseSCRAM reads "SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey" (RFC 5803 §3).
func parseSCRAM(text string) (SCRAM, error) {
	bad := errors.New("its keys are not SCRAM-SHA-256$iterations:salt$stored:server")
	f := strings.Split(strings.TrimPrefix(text, scramPrefix), "$")
	if len(f) != 2 {
		return SCRAM{}, bad
	}
	count, salt, ok := strings.Cut(f[0], ":")
	keys := strings.Split(f[1], ":")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 4096 || n > mostIterations || len(keys) < 2 {
		return SCRAM{}, bad // RFC 7677 §4: 4096 at least
	}
	s := SCRAM{Iterations: n}
	for _, part := range []struct {
		to   *[]byte
		text string
		size int
	}{{&s.Salt, salt, 0}, {&s.StoredKey, keys[0], sha256.Size}, {&s.ServerKey, keys[1], sha256.Size}} {
		b, err := base64.StdEncoding.DecodeString(part.text)
		if err != nil || len(b) == 0 || part.size > 0 && len(b) != part.size {
			return SCRAM{}, bad
		}
		*part.to = b
	}
	return s, nil
}

// NewSCRAM makes the keys of a password.
func NewSCRAM(password string) (SCRAM, error) {
	return scramKeys(password, random(scramSalt), scramIterations)
}

// scramKeys returns those of the password as SASLprep gives it (RFC 4013).
func scramKeys(password string, salt []byte, iterations int) (SCRAM, error) {
	c, err := scram.SHA256.NewClient("", password, "")
	if err != nil {
		return SCRAM{}, errors.New("the password has characters that SCRAM does not take (RFC 4013)")
	}
	k, err := c.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(salt), Iters: iterations})
	if err != nil {
		return SCRAM{}, fmt.Errorf("make SCRAM keys: %w", err)
	}
	return SCRAM{Iterations: iterations, Salt: salt, StoredKey: k.StoredKey, ServerKey: k.ServerKey}, nil
}
