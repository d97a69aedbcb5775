"""Names of files: those that are refused, and those that have to come back as they are."""

_CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
_SEPARATORS_OF_LINES = ["\u2028", "\u2029"]
_BIDI_CONTROLS = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BAD_PATHS = [
    *("", "/", "//", "/a", "//a", "a/", "a//", "a//b", "a/b/", "/a/", ".", "..", "./", "../", "./a", "../a", "a/."),
    *("a/..", "a/./b", "a/../b", "a/b/..", "../../etc/passwd", "/etc/passwd", "a/../../b", "../", "./.", "././a"),
    *("\\", "a\\b", "..\\a", "\\\\server\\share", "C:\\a", "a\\", "\\a", "a/\\/b", "..\\..\\a", "a\\/b"),
]
_TOO_LONG = ["a" * 256, "é" * 128, "漢" * 86, "😀" * 64, "a/" + "b" * 256, "/".join(["a" * 250] * 5), "a/" * 512 + "a"]

INVALID_NAMES = [
    *(f"a{character}b" for character in (*_CONTROLS, *_SEPARATORS_OF_LINES, *_BIDI_CONTROLS)),
    *("\na", "a\r\nSet-Cookie: b", "\0", "a\t", "\u202egpj.exe", "a/\u202e/b"),
    *dict.fromkeys(_BAD_PATHS),
    *_TOO_LONG,
]

_LONG = ["a" * 255, "é" * 127, "漢" * 85, "😀" * 63, "/".join(["a" * 255] * 4), "a/" * 511 + "ab", "a" * 250 + ".iso"]
_WITHOUT_BLANKS = """
    a a.txt a/b a/b/c.tar.gz 0 - --help -rf _ ~ ~a a~ ... .... ..a a..
    .a .htaccess .git/config
    CON NUL.txt aux COM1 LPT1.log desktop.ini Thumbs.db a. a:b a::$DATA C:
    a"b a'b a`b a;b a&b a|b a<b> a*b a?b a#b a%b a+b a=b a,b a@b a!b
    a$b $(reboot) ${HOME} `id` a^b a(b) a[b] a{b} %2e%2e%2fa %00 %0d%0a a% %s%n
    <script>alert(1)</script> {{7*7}} \u0024x
    filename*=UTF-8''b a\u200bb a\ufeffb a\u00adb
    café cafe\u0301 ÄÖÜß ñandú Ångström A\u030angstro\u0308m Łódź čšž İı ﬁ Ǆ ſ K
    Ελληνικά русский українська српски қазақ հայերեն ქართული עברית العربية فارسی اردو
    हिन्दी বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทย ລາວ မြန်မာ ខ្មែរ བོད་ཡིག አማርኛ ᏣᎳᎩ
    日本語 カタカナ ｶﾀｶﾅ ひらがな か\u3099 漢字 汉字 한국어 한 ᄀ\u1161\u11a8 Việt Tie\u0302\u0301ng
    😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇳 ☃ ♥️ ① ½ ² Ⅷ ٣ １２３ 𝔘𝔫𝔦 𠀀 \U0010fffd \ue000 \ufffd
    Z\u0351\u036b\u0343a\u0363lgo a\u0300\u0316 \u0301 a\u034fb a\u200cb a\u200db ﷺ ‱ ∞ a⁄b a∕b a／b a＼b
    ․․ ‥ … ．． a\ufe0f \U000e0041 a\u115fb a\u3164b a\u2800b \u180e a\u0378b \ufdd0 \uffff
"""
_WITH_BLANKS = [
    *(" ", " a", "a ", "a b", "a  b", ". a", "a .", "a/ /b", "a/ .. /b", "... /a", "a. "),
    *("'; DROP TABLE file; --", "${jndi:ldap://a}".replace("/", "_"), '"; filename="b', "=cmd|' _C calc'!A0"),
    *("a\u00a0b", "a\u3000b", "中文 文件.txt"),
]

VALID_NAMES = list(dict.fromkeys([*_WITHOUT_BLANKS.split(), *_WITH_BLANKS, *_LONG]))
