# #region client
import base64, json, socket, struct


class Servings:
    """Calls the servings of a node at its TCP port.

    Messages are `length#json` in both directions; the length counts UTF-16 units.
    """

    def __init__(self, host, port, namespace="default"):
        self.socket = socket.create_connection((host, port))
        self.reader = self.socket.makefile(encoding="utf-8", newline="")
        self.namespace = namespace

    def call(self, serving, **message):
        """The answer; with method="stream" all events, one after the other."""
        packet = {"pattern": f"sv.{self.namespace}.s.{serving}", "data": message, "id": "1"}
        text = json.dumps(packet)  # ASCII, so its length is that of its characters
        self.socket.sendall(f"{len(text)}#{text}".encode())
        while True:
            answer = self.read()
            if answer.get("err"):
                raise RuntimeError(answer["err"])
            if "response" in answer:
                yield answer["response"]
            if answer.get("isDisposed"):
                return

    def read(self):
        units, text = int("".join(iter(lambda: self.reader.read(1), "#"))), ""
        while units > 0:
            part = self.reader.read((units + 1) // 2)  # a character has one unit or two
            if not part:
                raise EOFError("The node has closed the connection")
            units -= len(part.encode("utf-16-le")) // 2
            text += part
        return json.loads(text)


def floats(shape, values):
    data = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    return {"$tensor": {"shape": shape, "datatype": "FP32", "data": data}}
# #endregion


if __name__ == "__main__":
    import sys

    servings = Servings("127.0.0.1", int(sys.argv[1]))
    # #region call
    [norms] = servings.call("norms", input=floats([2, 2], [3, 4, 5, 12]), tensors="list")
    # #endregion
    [text] = servings.call("echo", input="größer 🐘🐘 als 𝄞")
    events = list(servings.call("counter", input=3, method="stream"))
    try:
        list(servings.call("echo", inputs=1))
    except RuntimeError as error:
        fault = error.args[0]
    json.dump({"norms": norms, "text": text, "events": events, "fault": fault}, sys.stdout)
