"""Secrets and harmless texts for the rules of redaction.

The secrets are put together when they are asked for, from prefixes and letters that a generator
with a fixed seed chooses, so that no scanner of repositories finds one in this file.
"""

from __future__ import annotations

import base64
import random
import string
from typing import NamedTuple

ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
BASE32 = string.ascii_uppercase + "234567"
BASE64 = ALNUM + "+/"
URLSAFE = ALNUM + "-_"


class Secret(NamedTuple):
    """A text, and the part of it that must be gone."""

    text: str
    secret: str


class Maker:
    """Makes what a service would; always the same for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def some(self, length: int, letters: str = ALNUM) -> str:
        """Random letters, with a digit and a letter among them whatever the seed."""
        chosen = "".join(self._random.choices(letters, k=length - 2))
        return f"{chosen}7{'e' if 'e' in letters else 'E'}"

    def password(self) -> str:
        return f"{self.some(7)}!{self.some(4)}"

    def jwt(self) -> str:
        head, claims = b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"1234567","name":"Ann"}'
        parts = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (head, claims)]
        return ".".join([*parts, self.some(43, URLSAFE)])

    def pem(self, kind: str) -> str:
        lines = [self.some(64, BASE64) for _ in range(6)]
        return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])


def secrets(seed: int = 1) -> list[Secret]:
    make = Maker(seed)
    return [*_tokens(make), *_keys(make), *_connections(make), *_assigned(make), *_headers(make)]


def _within(text: str, secret: str) -> Secret:
    return Secret(text.replace("SECRET", secret), secret)


def _tokens(make: Maker) -> list[Secret]:
    """As agents meet them: alone, in a sentence, in a command."""
    made = [
        "AKIA" + make.some(16, BASE32).upper(),
        "ASIA" + make.some(16, BASE32).upper(),
        "AIza" + make.some(35, URLSAFE),
        "ya29." + make.some(60, URLSAFE),
        "GOCSPX-" + make.some(28, URLSAFE),
        "dop_v1_" + make.some(64, HEX),
        "LTAI" + make.some(20),
        "ghp_" + make.some(36),
        "gho_" + make.some(36),
        "ghs_" + make.some(36),
        "ghr_" + make.some(36),
        "github_pat_" + make.some(22) + "_" + make.some(59),
        "glpat-" + make.some(20, URLSAFE),
        "glptt-" + make.some(40, HEX),
        "gldt-" + make.some(20, URLSAFE),
        "xoxb-" + make.some(12, string.digits) + "-" + make.some(24),
        "xoxp-" + make.some(11, string.digits) + "-" + make.some(32, HEX),
        "xapp-1-" + make.some(11).upper() + "-" + make.some(40, HEX),
        "sk_live_" + make.some(24),
        "sk_test_" + make.some(24),
        "rk_live_" + make.some(24),
        "whsec_" + make.some(32),
        "sk-" + make.some(48),
        "sk-proj-" + make.some(64, URLSAFE),
        "sk-svcacct-" + make.some(60, URLSAFE),
        "sk-or-v1-" + make.some(64, HEX),
        "sk-ant-api03-" + make.some(93, URLSAFE),
        "gsk_" + make.some(52),
        "hf_" + make.some(34),
        "r8_" + make.some(37),
        "xai-" + make.some(80),
        "pplx-" + make.some(48),
        "npm_" + make.some(36),
        "pypi-AgEIcHlwaS5vcmc" + make.some(120, URLSAFE),
        "rubygems_" + make.some(48, HEX),
        "dckr_pat_" + make.some(27, URLSAFE),
        "SG." + make.some(22, URLSAFE) + "." + make.some(43, URLSAFE),
        "key-" + make.some(32, HEX),
        "SK" + make.some(32, HEX),
        "shpat_" + make.some(32, HEX),
        "dapi" + make.some(32, HEX),
        "hvs." + make.some(90, URLSAFE),
        "glsa_" + make.some(32) + "_" + make.some(8, HEX),
        "lin_api_" + make.some(40),
        "AGE-SECRET-KEY-1" + make.some(58, BASE32).upper(),
        "sbp_" + make.some(40, HEX),
        "lsv2_pt_" + make.some(32, HEX) + "_" + make.some(10, HEX),
        "sntrys_" + make.some(60, URLSAFE),
        "pscale_tkn_" + make.some(43, URLSAFE),
        make.some(76) + "AZDO" + make.some(4),
        "tskey-auth-" + make.some(17) + "-" + make.some(32),
        make.some(9, string.digits[1:] * 2)[:8] + "1:AA" + make.some(33, URLSAFE),
        make.some(3) + "8Q~" + make.some(34, URLSAFE),
        make.jwt(),
        make.jwt(),
    ]
    frames = (
        "SECRET",
        "use SECRET for the tests",
        "export T=SECRET",
        '{"t": "SECRET"}',
        "`SECRET`",
    )
    return [_within(frames[n % len(frames)], token) for n, token in enumerate(made)]


def _keys(make: Maker) -> list[Secret]:
    kinds = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY",
             "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK")  # fmt: skip
    whole = [make.pem(kind) for kind in kinds]
    in_json = make.pem("PRIVATE KEY").replace("\n", "\\n")
    cut = make.pem("RSA PRIVATE KEY").rpartition("\n-----END")[0]
    private = f"<private>the customer is {make.some(12)}</private>"
    return [
        *(_within("the key:\nSECRET\nkeep it", pem) for pem in whole),
        _within('{"type": "service_account", "private_key": "SECRET"}', in_json),
        _within("it ended in the middle: SECRET", cut),
        _within("ask for SECRET first", private),
        _within("SECRET", private.upper()),
    ]


def _connections(make: Maker) -> list[Secret]:
    forms = (
        "postgres://app:SECRET@db.internal:5432/app",
        "postgresql://app:SECRET@localhost/app?sslmode=require",
        "mysql://root:SECRET@127.0.0.1:3306/shop",
        "redis://:SECRET@cache:6379/0",
        "amqp://guest:SECRET@rabbit//vhost",
        "mongodb+srv://app:SECRET@cluster0.abcde.mongodb.net/db",
        "https://ann:SECRET@git.internal/team/repository.git",
        "ftp://files:SECRET@ftp.internal",
        "DATABASE_URL=postgres://u:SECRET@host/db",
        "smtp://mailer:SECRET@smtp.internal:587",
        "Server=tcp:sql.internal;Database=app;User Id=sa;Password=SECRET;Encrypt=true",
        "host=db user=app password=SECRET dbname=app",
        "jdbc:postgresql://db/app?user=app&password=SECRET&ssl=true",
        "curl -u ann:SECRET https://api.internal/v1",
    )
    made = [_within(form, make.password()) for form in forms]
    account = make.some(86, BASE64) + "=="
    storage = "DefaultEndpointsProtocol=https;AccountName=app;AccountKey=SECRET;EndpointSuffix=x"
    signature = make.some(43, BASE64).replace("/", "%2F").replace("+", "%2B") + "%3D"
    hook = f"T{make.some(9).upper()}/B{make.some(9).upper()}/{make.some(24)}"
    return [
        *made,
        _within(storage, account),
        _within("https://app.blob.core.windows.net/c/f?sv=2024&sig=SECRET", signature),
        _within("post to https://hooks.slack.com/services/SECRET", hook),
    ]


def _assigned(make: Maker) -> list[Secret]:
    passwords = (
        "password=SECRET", "password: SECRET", 'password = "SECRET"', "DB_PASSWORD=SECRET",
        "PGPASSWORD=SECRET psql -h db", "'passwd': 'SECRET'", "the login is ann, password: SECRET",
        "mysql --password SECRET", "passphrase: SECRET", '{"password": "SECRET"}',
    )  # fmt: skip
    keys = (
        "api_key: SECRET", "API_KEY=SECRET", 'apiKey = "SECRET"', "X-Api-Key: SECRET",
        "client_secret=SECRET", "export AUTH_TOKEN=SECRET", 'access_token: "SECRET"',
        "secretKeyBase=SECRET", 'const token: string = "SECRET"',
        "tool --api-key SECRET", '{\\"refreshToken\\": \\"SECRET\\"}', "accessKey=SECRET",
    )  # fmt: skip
    words = [_within("password=SECRET", word) for word in ("sword" + "fish", "hunter" + "2")]
    aws = make.some(40, BASE64)
    return [
        *(_within(form, make.password()) for form in passwords),
        *(_within(form, make.some(32)) for form in keys),
        *words,
        _within("aws_secret_access_key = SECRET", aws),
        _within('"SecretAccessKey": "SECRET"', make.some(40, BASE64)),
        _within("azure client secret: SECRET", make.some(32, HEX)),
    ]


def _headers(make: Maker) -> list[Secret]:
    basic = base64.b64encode(f"ann:{make.password()}".encode()).decode()
    return [
        _within("Authorization: Bearer SECRET", make.some(40)),
        _within("curl -H 'authorization: bearer SECRET' https://api", make.some(32, HEX)),
        _within("Authorization: Basic SECRET", basic),
        _within("with the header Bearer SECRET it works", make.some(36, URLSAFE)),
        _within('"Authorization": "token SECRET"', make.some(40, HEX)),
    ]


def harmless(seed: int = 2) -> list[str]:
    make = Maker(seed)
    return [*_made(make), *PLACEHOLDERS, *CODE, *PLACES, *SENTENCES]


def _made(make: Maker) -> list[str]:
    """What machines make, and is no secret."""
    uuid = "-".join(make.some(n, HEX) for n in (8, 4, 4, 4, 12))
    image = base64.b64encode(random.Random(3).randbytes(900)).decode()
    return [
        make.some(40, HEX),
        f"commit {make.some(40, HEX)} on main",
        f"fixed in {make.some(7, HEX)} and {make.some(12, HEX)}",
        uuid,
        f"task {uuid} is done",
        f"sha256:{make.some(64, HEX)}",
        f"integrity sha512-{make.some(86, BASE64)}==",
        f"md5 {make.some(32, HEX)}  dist/app.tar.gz",
        f"data:image/png;base64,{image}",
        f"![logo](data:image/gif;base64,{image[:400]})",
        image,
        f'etag: "{make.some(32, HEX)}"',
        f"image: registry.internal/app@sha256:{make.some(64, HEX)}",
        f"ssh-ed25519 {make.some(68, BASE64)} ann@laptop",
        f"-----BEGIN PUBLIC KEY-----\n{make.some(64, BASE64)}\n-----END PUBLIC KEY-----",
        f"-----BEGIN CERTIFICATE-----\n{make.some(64, BASE64)}\n-----END CERTIFICATE-----",
        f"trace id {make.some(32, HEX)}, span {make.some(16, HEX)}",
        f"request {make.some(20)} took 31 ms",
        f"syncd:log/{uuid}/{uuid}",
        f"session {make.some(26, BASE32).upper()}",
    ]


PLACEHOLDERS = [
    "password=${DB_PASSWORD}", "password=$DB_PASSWORD", "token: ${{ secrets.GITHUB_TOKEN }}",
    "api_key: <your-key>", "API_KEY=<YOUR_API_KEY>", "password: ********", "token=xxxxxxxxxxxxxxxx",
    "secret: [redacted: api-key]", "password=[redacted: password]", "api_key=your-api-key-here",
    "postgres://user:${PASSWORD}@host/db", "postgres://user:<password>@host/db",
    "https://{user}:{password}@host", "postgresql://installer:…@db.example.com/syncd",
    "AKIA" + "IOSFODNN7EXAMPLE", "ghp_" + "x" * 36, "sk-ant-...", "sk-proj-****************",
    "Authorization: Bearer ${TOKEN}", "Authorization: Bearer <token>", "Bearer YOUR_TOKEN_HERE",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY", "password=%s",
    "password: {{ vault_password }}", "token: your_token", "PASSWORD=changeme", "secret: null",
]  # fmt: skip
CODE = [
    "password: str", "password: str | None = None", "token = get_token()", "token: string;",
    "def login(user, password=None):", "password = os.environ['DB_PASSWORD']",
    "const token = process.env.GITHUB_TOKEN", "api_key=settings.api_key", "self.token = token",
    "if token == expected_token:", "connect(host=host, password=password)", "secret: true",
    "client = Client(api_key=config.api_key, timeout=30)", "token_count = 4096",
    "max_tokens: 100000", "tokens_consumed=48210", "password = getpass.getpass()",
    "key = hashlib.sha256(data).digest()",
    "for key, value in settings.items():", "primary_key = Column(Integer)", "sort(key=len)",
    "secretName: db-credentials", "secretKeyRef:\n  name: app-secrets",
    "private_key_path=/etc/ssl/a.key",
    "password_hash = bcrypt.hashpw(raw, salt)", "tokenizer = AutoTokenizer('gpt2-medium')",
    "token = request.headers.get('X-Token')", "ssh_key: ~/.ssh/id_ed25519", "PWD=/home/ann/project",
    "raise AuthError('bad token')", "password=self._password", "apiKey: process.env.API_KEY,",
    "--token-file=/run/secrets/token1", "auth_token = create_access_token(identity=user.id)",
    "access_key = load_access_key(profile2)", "token: JWTToken = decode(raw)", "keyboard: us-intl",
    "password_field = driver.find_element(By.ID, 'password')", "assert token.startswith('ghp_')",
    "re.compile(r'ghp_[A-Za-z0-9]{36}')", "sk-spinner-container-inner-circle",
    "class='sk-cube-grid'",
]  # fmt: skip
PLACES = [
    "/home/ann/.config/app/token.json", "src/auth/password_reset.py", "tests/test_api_key.py:42",
    "https://example.com/reset-password?user=ann", "https://git.internal/team/app.git",
    "postgres://db.internal:5432/app", "postgres://app@db.internal/app", "redis://cache:6379/0",
    "http://localhost:8080/callback?code=none&state=start", "git@github.com:team/app.git",
    "mongodb://localhost:27017", "see https://docs.internal/api#authentication:tokens@v2",
    "http://127.0.0.1:3000/users/ann@mail.internal", "s3://bucket/exports/2024-05-01.csv",
    "registry.internal:5000/app:v1.2.3", "file:///var/lib/app/secret-store.db", "C:\\keys\\app.pem",
    "https://hooks.slack.com/services/", "ssh://git@host:22/repo", "amqp://rabbit:5672/%2F",
]  # fmt: skip
SENTENCES = [
    "The password must have at least 12 characters.", "Rotate the API key every 90 days.",
    "Decided: passwords are hashed with argon2id.", "password: required field", "Token: expired",
    "The token is validated in the middleware.", "Ask Ann for the password: she has it.",
    "secret: rotate it quarterly", "Bearer tokens are checked before anything else.",
    "Use bearer authentication for the internal API", "the key: keep functions short",
    "The key decision: integers of minor units", "Store the secret in Vault, not in the file.",
    "password: see 1Password", "The access token expires after 3600 seconds.",
    "api key: not needed any more", "Passwords: 8 to 64 characters", "Basic authentication is off",
    "authorization: role-based, two roles", "token: RS256-signed", "password: min-8-chars",
    "Authorization header is missing in 3 requests", "We pass the tokens along: see handler.py",
    "private notes go into the wiki", "Signed with the device key; see keys/signing.pem",
    "The secret santa list is done", "Tokenizer: bpe, 50257 entries", "The password policy changed",
    "Added retries with backoff (3 attempts, 250 ms)", "wrote tests for login and logout",
]  # fmt: skip
