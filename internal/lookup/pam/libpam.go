//go:build linux && (amd64 || arm64)

package pam

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Numbers of Linux-PAM's _pam_types.h.
const (
	success       = 0
	serviceError  = 3
	bufferError   = 5
	noDataAvail   = 18
	authInfo      = 9  // PAM_AUTHINFO_UNAVAIL
	tokenBusy     = 22 // PAM_AUTHTOK_LOCK_BUSY
	aborted       = 26
	tryAgain      = 24
	moduleUnknown = 28
	openError     = 1
	symbolError   = 2
	conversation  = 19 // PAM_CONV_ERR
	pamUser       = 2
	pamRemoteHost = 4
	silent        = 0x8000
	noEmptyToken  = 0x0001 // PAM_DISALLOW_NULL_AUTHTOK

	promptEchoOff = 1
	promptEchoOn  = 2
	errorMessage  = 3
	textInfo      = 4
)

// library is what is used of libpam and libc.
type library struct {
	start        func(service, user string, conv *conv, handle *unsafe.Pointer) int32
	startConfdir func(service, user string, conv *conv, dir string, handle *unsafe.Pointer) int32
	authenticate func(handle unsafe.Pointer, flags int32) int32
	account      func(handle unsafe.Pointer, flags int32) int32
	end          func(handle unsafe.Pointer, status int32) int32
	getText      func(handle unsafe.Pointer, what int32, text *unsafe.Pointer) int32
	setText      func(handle unsafe.Pointer, what int32, text string) int32
	message      func(handle unsafe.Pointer, status int32) string
	calloc       func(n, size uintptr) unsafe.Pointer
	free         func(p unsafe.Pointer)
	strdup       func(text string) unsafe.Pointer
}

// conv is struct pam_conv.
type conv struct {
	call uintptr
	_    uintptr // appdata_ptr, which answer does not need
}

// response is struct pam_response.
type response struct {
	text unsafe.Pointer
	code int32
	_    int32
}

// prompt is struct pam_message.
type prompt struct {
	style int32
	_     int32
	_     unsafe.Pointer // the text, which only says what style says
}

func load() (l *library, err error) {
	defer func() {
		if r := recover(); r != nil { // purego's way to say that a name is missing
			err = fmt.Errorf("load libpam.so.0: %v", r)
		}
	}()
	l = &library{}
	pam, err := purego.Dlopen("libpam.so.0", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load libpam.so.0: %w", err)
	}
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load libc.so.6: %w", err)
	}
	purego.RegisterLibFunc(&l.start, pam, "pam_start")
	if _, err := purego.Dlsym(pam, "pam_start_confdir"); err == nil { // Linux-PAM 1.4
		purego.RegisterLibFunc(&l.startConfdir, pam, "pam_start_confdir")
	}
	purego.RegisterLibFunc(&l.authenticate, pam, "pam_authenticate")
	purego.RegisterLibFunc(&l.account, pam, "pam_acct_mgmt")
	purego.RegisterLibFunc(&l.end, pam, "pam_end")
	purego.RegisterLibFunc(&l.getText, pam, "pam_get_item")
	purego.RegisterLibFunc(&l.setText, pam, "pam_set_item")
	purego.RegisterLibFunc(&l.message, pam, "pam_strerror")
	purego.RegisterLibFunc(&l.calloc, libc, "calloc")
	purego.RegisterLibFunc(&l.free, libc, "free")
	purego.RegisterLibFunc(&l.strdup, libc, "strdup")
	return l, nil
}

// authenticate asks PAM for the password and the account.
func authenticate(c Config, q Question) Verdict {
	runtime.LockOSThread() // modules change the identity of their thread
	l, err := load()
	if err != nil {
		return Verdict{Result: Trouble, Reason: err.Error()}
	}
	talk := &conv{call: purego.NewCallback(l.answer(q))}
	var handle unsafe.Pointer
	var status int32
	switch {
	case c.Dir == "":
		status = l.start(c.Service, q.User, talk, &handle)
	case l.startConfdir == nil:
		return Verdict{Result: Trouble, Reason: "this libpam takes no other directory than /etc/pam.d"}
	default:
		status = l.startConfdir(c.Service, q.User, talk, c.Dir, &handle)
	}
	if status != success {
		return Verdict{Result: Trouble, Reason: fmt.Sprintf("pam_start: error %d", status)}
	}
	if q.Host != "" {
		l.setText(handle, pamRemoteHost, q.Host)
	}
	step := "pam_authenticate"
	if status = l.authenticate(handle, silent|noEmptyToken); status == success {
		step = "pam_acct_mgmt"
		status = l.account(handle, silent|noEmptyToken)
	}
	v := Verdict{Result: result(status), Reason: step + ": " + l.message(handle, status)}
	if v.Result == Ok {
		v.User, v.Reason = q.User, ""
		// A module may have changed the name (PAM_USER).
		var text unsafe.Pointer
		if l.getText(handle, pamUser, &text) == success && text != nil {
			v.User = goString(text)
		}
	}
	l.end(handle, status)
	runtime.KeepAlive(talk)
	return v
}

// result: a code that says nothing about the user or his password is trouble. PAM_SYSTEM_ERR
// is not such a code: pam_exec returns it when its program has refused.
func result(status int32) string {
	switch status {
	case success:
		return Ok
	case openError, symbolError, serviceError, bufferError, authInfo, noDataAvail,
		conversation, tokenBusy, tryAgain, aborted, moduleUnknown:
		return Trouble
	}
	return Refused
}

// answer returns the conversation: the password once, the name where it is asked for, nothing
// else. PAM frees what it is given.
func (l *library) answer(q Question) func(n int32, prompts, answers, data unsafe.Pointer) int32 {
	asked := false
	return func(n int32, prompts, answers, _ unsafe.Pointer) int32 {
		if n <= 0 || n > 32 {
			return conversation
		}
		given := l.calloc(uintptr(n), unsafe.Sizeof(response{}))
		if given == nil {
			return bufferError
		}
		list := unsafe.Slice((*response)(given), n)
		for i, p := range unsafe.Slice((**prompt)(prompts), n) {
			switch {
			case p.style == promptEchoOff && !asked:
				asked = true
				list[i].text = l.strdup(q.Password)
			case p.style == promptEchoOn:
				list[i].text = l.strdup(q.User)
			case p.style == errorMessage, p.style == textInfo:
			default: // a second secret: there is none
				for _, r := range list {
					l.free(r.text)
				}
				l.free(given)
				return conversation
			}
		}
		*(*unsafe.Pointer)(answers) = given
		return success
	}
}

// goString copies a string of C's.
func goString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
