"""A filter that does what the test asks for, made with libmilter (Debian's python3-milter).

    filter.py SOCKET CASE HEARD

CASE is a file of JSON that is read at each negotiation: {"stage": [["verb", "word", ...], ...]}.
What the filter hears is appended to HEARD, a JSON list on each line.
"""
import json, os, sys, time
import Milter

MACROS = ["i", "j", "v", "_", "{daemon_name}", "{daemon_addr}", "{daemon_port}", "{client_addr}", "{client_name}",
          "{client_ptr}", "{client_port}", "{client_connections}", "{auth_type}", "{auth_authen}", "{auth_author}", "{auth_ssf}",
          "{tls_version}", "{cipher}", "{cipher_bits}", "{cert_subject}", "{cert_issuer}",
          "{mail_addr}", "{mail_host}", "{mail_mailer}", "{rcpt_addr}", "{rcpt_host}", "{rcpt_mailer}"]
STAGES = {"connect": Milter.M_CONNECT, "hello": Milter.M_HELO, "envfrom": Milter.M_ENVFROM, "envrcpt": Milter.M_ENVRCPT,
          "data": Milter.M_DATA, "eom": Milter.M_EOM, "eoh": Milter.M_EOH}
VERDICTS = {"accept": Milter.ACCEPT, "reject": Milter.REJECT, "tempfail": Milter.TEMPFAIL, "discard": Milter.DISCARD,
            "continue": Milter.CONTINUE, "skip": Milter.SKIP, "noreply": Milter.NOREPLY}


class Filter(Milter.Base):
    def negotiate(self, opts):
        with open(sys.argv[2]) as f:
            self.case = json.load(f)
        self._actions, offered, _, _ = opts
        wanted = 0
        for verb in self.case.get("negotiate", []):
            if verb[0] == "steps":
                wanted |= int(verb[1], 16)
            elif verb[0] == "macros":
                self._ctx.setsymlist(STAGES[verb[1]], " ".join(verb[2:])) # pymilter's own method passes bytes
        self.note("offered", hex(opts[0]), hex(offered))
        self._protocol = wanted & offered
        opts[1] = self._protocol
        opts[2] = opts[3] = 0
        return Milter.CONTINUE

    def note(self, *what):
        with open(sys.argv[3], "a") as f:
            f.write(json.dumps([str(w) for w in what], ensure_ascii=True) + "\n")

    def act(self, stage, *what):
        macros = [m + "=" + v for m in MACROS for v in [self.getsymval(m)] if v]
        self.note(stage, *what, "|", *macros)
        verdict = Milter.NOREPLY if self.silent(stage) else Milter.CONTINUE
        for verb in self.case.get(stage, []):
            name, words = verb[0], verb[1:]
            if name in VERDICTS:
                verdict = VERDICTS[name]
            elif name == "only": # the answer is for this argument alone
                if not any(words[0] in str(w) for w in what):
                    return Milter.CONTINUE
            elif name == "reply":
                self.setreply(words[0], words[1] or None, *words[2:])
                verdict = Milter.TEMPFAIL if words[0][0] == "4" else Milter.REJECT
            elif name == "exit":
                os._exit(0)
            elif name == "sleep":
                time.sleep(float(words[0]))
            elif name in ("insheader", "chgheader"):
                n = int(words[0])
                if name == "insheader":
                    self.addheader(words[1], words[2], n)
                else:
                    self.chgheader(words[1], n, words[2])
            elif name == "replacebody":
                self.replacebody(words[0].encode("latin-1"))
            else:
                getattr(self, name)(*words) # addheader, addrcpt, delrcpt, chgfrom, quarantine, progress
        return verdict

    def silent(self, stage):
        bits = {"connect": Milter.P_NR_CONN, "hello": Milter.P_NR_HELO, "envfrom": Milter.P_NR_MAIL, "envrcpt": Milter.P_NR_RCPT,
                "data": Milter.P_NR_DATA, "header": Milter.P_NR_HDR, "eoh": Milter.P_NR_EOH, "body": Milter.P_NR_BODY, "unknown": Milter.P_NR_UNKN}
        return self._protocol & bits.get(stage, 0)

    def connect(self, name, family, addr): return self.act("connect", name)
    def hello(self, name): return self.act("hello", name)
    def envfrom(self, addr, *params): return self.act("envfrom", addr, *params)
    def envrcpt(self, addr, *params): return self.act("envrcpt", addr, *params)
    def data(self): return self.act("data")
    def unknown(self, line): return self.act("unknown", line)
    def header(self, name, value): return self.act("header", name, value)
    def header_bytes(self, name, value): return self.act("header", name, value.decode("latin-1"))
    def eoh(self): return self.act("eoh")
    def body(self, chunk): return self.act("body", len(chunk))
    def eom(self): return self.act("eom")
    def abort(self): return self.act("abort")
    def close(self):
        self.note("close")
        return Milter.CONTINUE


Milter.factory = Filter
Milter.set_exception_policy(Milter.TEMPFAIL)
Milter.set_flags(Milter.ADDHDRS | Milter.CHGHDRS | Milter.CHGBODY | Milter.ADDRCPT | Milter.ADDRCPT_PAR | Milter.DELRCPT
                 | Milter.QUARANTINE | Milter.CHGFROM | Milter.SETSYMLIST)
Milter.runmilter("filter", sys.argv[1], timeout=60)
