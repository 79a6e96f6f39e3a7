# Answers lookups in a JSON file, as the page on tables describes it.
import json, sys
rows = {k.encode(): v.encode() for k, v in json.load(open(sys.argv[1])).items()}
i, o = sys.stdin.buffer, sys.stdout.buffer
while c := i.read(1):
    n = c
    while (c := i.read(1)) != b":": n += c
    name, _, key = i.read(int(n)).partition(b" "); i.read(1)
    a = b"OK " + rows[key] if key in rows else b"NOTFOUND "
    o.write(b"%d:%s," % (len(a), a)); o.flush()
