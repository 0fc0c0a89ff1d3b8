package org.tensorflow.lite

import java.io.File
import java.nio.ByteBuffer

public interface Tensor {
    public fun name(): String
}

/** Runs the model in `python -m tests.litert_process`, which reads and writes raw tensors in a folder. */
public class Interpreter(model: ByteBuffer, private val options: Options) : AutoCloseable {
    public class Options {
        public var threads: Int = 1

        public fun setNumThreads(threads: Int): Options = apply { this.threads = threads }
    }

    private val folder = File.createTempFile("litert", "").also { it.delete(); it.mkdir() }
    private val inputs: List<String>
    private val outputs: List<String>

    init {
        File(folder, "model.tflite").writeBytes(ByteArray(model.remaining()).also { model.get(it) })
        python("names")
        inputs = File(folder, "inputs.txt").readLines()
        outputs = File(folder, "outputs.txt").readLines()
    }

    public fun getInputTensorCount(): Int = inputs.size

    public fun getInputTensor(index: Int): Tensor = Named(inputs[index])

    public fun getOutputTensorCount(): Int = outputs.size

    public fun getOutputTensor(index: Int): Tensor = Named(outputs[index])

    public fun runForMultipleInputsOutputs(inputs: Array<Any?>, outputs: Map<Int, Any>) {
        for ((index, value) in inputs.withIndex()) {
            val buffer = value as ByteBuffer
            File(folder, "input-$index.raw").writeBytes(ByteArray(buffer.remaining()).also { buffer.get(it) })
        }
        python("run")
        for ((index, value) in outputs) {
            (value as ByteBuffer).put(File(folder, "output-$index.raw").readBytes())
        }
    }

    override fun close() {
        folder.deleteRecursively()
    }

    private fun python(word: String) {
        val program = System.getProperty("python")
        val process = ProcessBuilder(program, "-m", "tests.litert_process", word, folder.path, "${options.threads}").redirectErrorStream(true).start()
        val said = process.inputStream.bufferedReader().readText()
        check(process.waitFor() == 0) { said }
    }

    private class Named(private val name: String) : Tensor {
        override fun name(): String = name
    }
}
