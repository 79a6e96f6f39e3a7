# Reads report files with Python's strict parser, as a program that knows nothing of
# ours does: any defect is an error, labels must be true, and the boundary may stand
# only where a part begins. Prints what it found as JSON.
import email, email.policy, json, sys
policy = email.policy.strict
result = []
def norm(v):
    v = ' '.join(str(v).split())
    k, s, r = v.partition(';')
    return k + s + r.strip() if s else v
def block(items):
    d = {}
    for k, v in items:
        k = k.title()
        d[k] = d.get(k, '') + norm(v)
    return d
def label(p, raw):
    cte = str(p.get('content-transfer-encoding', '7bit')).lower()
    if cte == '7bit': assert all(c < 128 for c in raw), 'not 7bit'
    return cte
for name in sys.argv[1:]:
    raw = open(name, 'rb').read()
    m = email.message_from_bytes(raw, policy=policy)
    assert m.get_content_type() == 'multipart/report', name
    assert m.get_param('report-type') == 'delivery-status', name
    assert m['auto-submitted'] == 'auto-replied', name
    for p in m.walk(): assert not p.defects, (name, p.get_content_type(), p.defects)
    bound = ('--' + m.get_boundary()).encode()
    assert all(len(l) <= 998 for l in raw.split(b'\n')), name
    pieces = (b'\n' + raw).split(b'\n' + bound)
    parts = m.get_payload()
    assert len(pieces) == len(parts) + 2 and pieces[-1].strip() == b'--', (name, len(pieces))
    encodings = {label(p, piece) for p, piece in zip(parts, pieces[1:])}
    whole = label(m, raw)
    assert whole in ('7bit', '8bit') and ('8bit' not in encodings or whole == '8bit'), (name, whole, encodings)
    out = {'Kinds': [p.get_content_type() for p in parts], 'Recipients': []}
    assert parts[0].get_content().strip(), name
    if out['Kinds'][1] == 'message/delivery-status':
        blocks = [block(b.items()) for b in parts[1].get_payload()]
    else:
        # RFC 6533 is not known to it.
        body = pieces[2].split(b'\n\n', 1)[1].decode('utf-8').strip('\n')
        blocks = []
        for b in body.split('\n\n'):
            lines = b.replace('\n ', ' ').split('\n')
            blocks.append(block([l.split(':', 1) for l in lines]))
    out['Message'], out['Recipients'] = blocks[0], blocks[1:]
    result.append(out)
print(json.dumps(result))
