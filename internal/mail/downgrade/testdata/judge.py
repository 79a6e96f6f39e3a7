"""Compares messages before and after conversion as Python's email package reads them.

Each line of the input is two messages in base64, as they are on the wire. The answer is a
line for each: "ok", or what differs in the two.
"""
import base64
import email
import email.errors
import email.policy
import quopri
import sys


def tree(m):
    kind = m.get_content_type()
    if kind == "message/global":  # may be encoded (RFC 6532), which this reader does not know
        return [kind, b""]
    if m.is_multipart():
        parts = [tree(p) for p in m.get_payload()]
        return [kind, text(m.preamble), parts, text(m.epilogue)]
    return [kind, m.get_payload(decode=True)]


def closed(m):
    """Whether all multiparts end. Of one that does not, the last line end is not sure."""
    return not any(isinstance(d, email.errors.CloseBoundaryNotFoundDefect) for p in m.walk() for d in p.defects)


def text(s):
    return (s or "").encode("ascii", "surrogateescape")


def differ(a, b):
    if len(a) != len(b) or a[0] != b[0]:
        return "%r and %r" % (a, b)
    if len(a) == 2:
        if a[1] == b[1]:
            return ""
        at = next((i for i, (x, y) in enumerate(zip(a[1], b[1])) if x != y), min(len(a[1]), len(b[1])))
        around = slice(max(0, at - 60), at + 60)
        return "%s at byte %d of %d: %r and %r" % (a[0], at, len(a[1]), a[1][around], b[1][around])
    for i in (1, 3):
        if a[i] != b[i] and a[i] != quopri.decodestring(b[i]):
            return "text around parts: %r and %r" % (a[i], b[i])
    if len(a[2]) != len(b[2]):
        return "%d parts and %d" % (len(a[2]), len(b[2]))
    for x, y in zip(a[2], b[2]):
        if d := differ(x, y):
            return d
    return ""


def lines(t, end):
    """The content of binary parts is encoded with the line ends that it was stored with."""
    if len(t) == 2:
        return [t[0], t[1].replace(b"\r\n", b"\n").rstrip(end)]
    return [t[0], t[1], [lines(p, end) for p in t[2]], t[3]]


for line in sys.stdin:
    a, b = (base64.b64decode(s) for s in line.split(" "))
    try:
        a, b = (email.message_from_bytes(s, policy=email.policy.compat32) for s in (a, b))
        end = b"" if closed(a) else b"\n"
        print(differ(lines(tree(a), end), lines(tree(b), end)) or "ok")
    except Exception as e:  # a message that this reader cannot read is no evidence
        print("skipped: %r" % e)
    sys.stdout.flush()
