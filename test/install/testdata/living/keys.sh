# Keys that root alone can read, where certbot keeps them, and a reload of each unit.
far=/var/tmp/far
live=/etc/letsencrypt/live/mail archive=/etc/letsencrypt/archive/mail
mkdir -p $live $archive
chmod 700 /etc/letsencrypt /etc/letsencrypt/live /etc/letsencrypt/archive
issue() { # a certificate with that serial number
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 60 -subj /CN=mail.example.org -addext subjectAltName=DNS:mail.example.org \
		-set_serial "$1" -keyout $archive/privkey$1.pem -out $archive/fullchain$1.pem 2>/dev/null
	chmod 600 $archive/privkey$1.pem
	ln -sfn ../../archive/mail/fullchain$1.pem $live/fullchain.pem
	ln -sfn ../../archive/mail/privkey$1.pem $live/privkey.pem
}
serves() { # a port, a serial number, options of s_client
	port=$1 serial=$2
	shift 2
	openssl s_client -connect 127.0.0.1:$port "$@" </dev/null 2>/dev/null | openssl x509 -noout -serial | grep -qx "serial=0$serial"
}
conf_reads() { journalctl --no-pager --output=cat -u zmailer-$1.service | grep -c conf-read || true; }
read_again() { [ "$(conf_reads $1)" -gt "$2" ]; }

issue 1
! su -s /bin/sh zmailer -c "cat $live/privkey.pem" 2>/dev/null || fail "the daemons' user can read the key"
cp /etc/zmailer/zmailer.conf /tmp/good.conf
printf '%s\n' TLSCERT=$live/fullchain.pem TLSKEY=$live/privkey.pem WEBCERT=$live/fullchain.pem WEBKEY=$live/privkey.pem >>/etc/zmailer/zmailer.conf
for service in smtpserver router scheduler; do
	pid=$(pid_of $service) n=$(conf_reads $service)
	systemctl reload zmailer-$service.service
	await read_again $service $n
	[ "$(pid_of $service)" = $pid ] || fail "the reload has restarted $service"
done
await serves 25 1 -starttls smtp
systemctl start zmailer-web.service
await serves 2580 1

# Renewed, as by certbot: nobody has to tell the daemons.
issue 2
await serves 25 2 -starttls smtp
await serves 2580 2
systemctl stop zmailer-web.service

# What cannot be used is not taken, and what runs goes on.
cp /etc/zmailer/zmailer.conf /tmp/keys.conf
echo 'HASHLEVELS=many' >>/etc/zmailer/zmailer.conf
for service in smtpserver router scheduler; do
	pid=$(pid_of $service)
	! systemctl reload zmailer-$service.service 2>/dev/null || fail "$service was reloaded with an error in zmailer.conf"
	[ "$(pid_of $service)" = $pid ] || fail "the refused reload has ended $service"
done
cp /tmp/keys.conf /etc/zmailer/zmailer.conf

# A key of DKIM: ta-smtp has it by the scheduler's helper. Unsigned mail would wait.
zmctl dkim newkey --type ed25519 mail.example.org test >/dev/null
key=/etc/zmailer/keys/test.mail.example.org.pem
chown root:root /etc/zmailer/keys $key
chmod 755 /etc/zmailer/keys
chmod 600 $key
[ ! -e /etc/zmailer/dkim ] || mv /etc/zmailer/dkim /tmp/dkim
echo 'mail.example.org test keys/test.mail.example.org.pem' >/etc/zmailer/dkim
zmctl restart scheduler
send 'with a signature' ann@far.example
await grep -qx 'with a signature' $far/got
grep -qx signed $far/got || fail "it has no signature"

rm -r /etc/zmailer/dkim /etc/zmailer/keys /etc/letsencrypt
[ ! -e /tmp/dkim ] || mv /tmp/dkim /etc/zmailer/dkim
cp /tmp/good.conf /etc/zmailer/zmailer.conf
zmctl restart
await empty
healthy
